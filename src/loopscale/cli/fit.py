"""``loopscale fit``, ``backtest``, ``compare`` and ``isoflop``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from loopscale.cli.output import console, print_json, print_table
from loopscale.cli.params import INTEGERS, Quantity, output_options
from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError, shown
from loopscale.core.files import is_file
from loopscale.core.progress import progress_bar
from loopscale.core.quantities import format_count, format_power, parse_count
from loopscale.core.report import check_report_path
from loopscale.fitting import Observations, Recipe, Scheme, fit
from loopscale.fitting.backtest import DECADES, backtest, rich_table
from loopscale.fitting.compare import compare, differences, table
from loopscale.fitting.data.public import SWEEP_RECURRENCES, simulate_sweep
from loopscale.fitting.isoflop import IsoFlop, isoflop
from loopscale.scaling import MAPPINGS, OUTER_LAWS, Counting, outer_law

F = TypeVar("F", bound=Callable[..., Any])


def _outer(text: str) -> str:
    outer_law(text)
    return text


OUTER = Quantity("NAME|EXPRESSION", _outer)


_IN_OPTIONS = (
    (re.compile(r"columns=\{'(\w+)': \.\.\.\}"), r"--columns \1=NAME"),
    (re.compile(r"fixed=\{'(\w+)': value\}"), r"--fix \1=VALUE"),
    (re.compile(r"\bouter='([\w-]+)'"), r"--outer \1"),
    (re.compile(r"\bmapping='([\w-]+)'"), r"--mapping \1"),
    (re.compile(r"\bwith fixed\b"), "with --fix"),
    (re.compile(r"\bleave some of them out of fixed\b"), "leave some of them out of --fix"),
    (re.compile(r"^fixed:|(?<= )fixed:"), "--fix:"),
    (re.compile(r"^bounds:|(?<= )bounds:"), "--bound:"),
    (re.compile(r"^tie:"), "--tie:"),
    (re.compile(r"\btie the exponents \(alpha=beta\)"), "tie the exponents with --tie alpha=beta"),
    (re.compile(r"\bstate units to overrule\b"), "--units overrules it"),
    (re.compile(r"\bstate the unit of the column\b"), "state the unit with --units"),
)
"""How sentences of the library are put in terms of the command line."""


def in_options(text: str) -> str:
    """Return a sentence with arguments of Python written as options."""
    for pattern, option in _IN_OPTIONS:
        text = pattern.sub(option, text)
    return text


def command_terms(function: F) -> F:
    """Let errors of a command speak of its options."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except InputError as error:
            raise InputError(in_options(str(error))) from None

    return cast(F, run)


def data_options(function: F) -> F:
    """Add RUNS and the options that say how to read it."""
    return click.argument("runs", type=click.Path())(reading_options(function))


def reading_options(function: F) -> F:
    """Add the options that say how to read a sweep."""
    options = (
        click.option("--columns", multiple=True, metavar="OURS=THEIRS", help="A column's other name, like D=seen."),
        click.option("--units", multiple=True, metavar="COLUMN=UNIT", help="What a column counts in, like D=1B."),
        click.option(
            "--counts",
            type=click.Choice([counting.value for counting in Counting]),
            help="What the file's parameter counts include.  [default: taken as without-embeddings]",
        ),
        click.option("--keep", metavar="EXPRESSION", help='Rows to use, like "D/N >= 20" or "width == 512".'),
        click.option("--best-of", is_flag=True, help="Use the lowest loss of each model and token count."),
        click.option(
            "--simulated-noise",
            type=click.FloatRange(0, 1),
            default=0.0037,
            show_default=True,
            help="Noise in nats when RUNS is `simulated`.",
        ),
        click.option(
            "--simulated-recurrence",
            type=INTEGERS,
            default=SWEEP_RECURRENCES,
            show_default=",".join(map(str, SWEEP_RECURRENCES)),
            help="Recurrences when RUNS is `simulated`; add 16 for the paper's held-out slice.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def read_runs(
    runs: str,
    columns: tuple[str, ...],
    units: tuple[str, ...],
    counts: str | None,
    keep: str | None,
    best_of: bool,
    simulated_noise: float,
    simulated_recurrence: tuple[int, ...],
) -> Observations:
    """Return the sweep that RUNS names: a file, a sweep file of ours, `simulated`, `micro`, or a public sweep."""
    if runs == "simulated" and not is_file(runs):
        sweep = simulate_sweep(noise=simulated_noise, recurrences=simulated_recurrence)
        return Observations.of(sweep, keep=keep, best_of=best_of)
    if Path(runs).suffix == ".toml" or is_sweep_folder(runs):
        return Observations.of(read_sweep_runs(runs), keep=keep, best_of=best_of)
    named = dict(_pair(text, "--columns") for text in columns)
    scaled = {name: parse_count(value, f"--units {name}") for name, value in (_pair(text, "--units") for text in units)}
    kind = None if counts is None else Counting(counts)
    return Observations.of(
        runs, columns=named or None, units=scaled or None, counts=kind, keep=keep, best_of=best_of
    )  # fmt: skip


def is_sweep_folder(path: str) -> bool:
    """Tell whether ``path`` is a folder with the results of a sweep."""
    try:
        return (Path(path) / "sweep.sqlite").is_file()
    except (OSError, ValueError):  # too long for a path, or with a zero byte
        return False


def read_sweep_runs(file: str) -> Observations:
    """Return the observations of a sweep file, once its results are verified; damaged results are refused."""
    if is_sweep_folder(file):
        raise InputError(f"{file}: this folder holds a sweep's results; give the sweep file, like {file}.toml")
    from loopscale.sweep.export import observations
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.store import Store
    from loopscale.verify import verified

    sweep = read_sweep(file)
    with Store(sweep.results) as store:
        observed, _ = observations(sweep, store)
    return replace(observed, notes=(*observed.notes, *verified(sweep.results)))


def form_options(function: F) -> F:
    """Add ``--outer`` and the options of the fit itself."""
    options = (
        click.option(
            "--outer",
            type=OUTER,
            help=f"Outer law: {', '.join(OUTER_LAWS)}, or an expression like 'c + A/N**alpha + B/D**beta'.  "
            "[default: chosen from the data]",
        ),
        click.option("--fix", multiple=True, metavar="NAME=VALUE", help="Hold a coefficient, like c=1.5."),
        click.option("--tie", multiple=True, metavar="NAME=NAME", help="Tie two coefficients, like alpha=beta."),
        click.option("--bound", multiple=True, metavar="NAME=LOW:HIGH", help="Search a coefficient in this range."),
        click.option(
            "--delta",
            default="1e-3",
            show_default=True,
            help="Huber delta on ln loss; `auto` estimates it, `inf` is least squares.",
        ),
        click.option(
            "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of starts and resamples."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def take_procedure(given: dict[str, Any]) -> dict[str, Any]:
    """Take the options of :func:`form_options` out of ``given``; return the keyword arguments of ``fit`` they state."""
    fix, bound = given.pop("fix"), given.pop("bound")
    return {
        "tie": dict(_pair(text, "--tie") for text in given.pop("tie")),
        "fixed": {name: _number(value, f"--fix {name}") for name, value in (_pair(text, "--fix") for text in fix)},
        "bounds": {name: _range(value, name) for name, value in (_pair(text, "--bound") for text in bound)},
        "delta": _delta(given.pop("delta")),
        "seed": given.pop("seed"),
    }


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        raise click.BadParameter(f"{shown(text)} is not NAME=VALUE", param_hint=f"'{option}'")
    return name.strip(), value.strip()


def _number(text: str, option: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value != value or value in (float("inf"), float("-inf")):
        raise InputError(f"{option}: {shown(text)} is not a finite number")
    return value


def _range(text: str, name: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    if not colon:
        raise InputError(f"--bound {name}: {shown(text)} is not LOW:HIGH; write it like {name}=0.1:2")
    return _number(low, f"--bound {name}"), _number(high, f"--bound {name}")


def _delta(text: str) -> float | None:
    if text.strip().lower() == "auto":
        return None
    if text.strip().lower() == "inf":
        return float("inf")
    value = _number(text, "--delta")
    if value <= 0:
        raise InputError(f"--delta: {shown(text)} should be above zero, `auto` or `inf`")
    return value


@verb("compare")
@data_options
@click.option(
    "--hold-out", "slices", multiple=True, metavar="SLICE", help="Rows to predict unseen, like R=16 or D>400B."
)
@click.option(
    "--mapping", "mappings", multiple=True, type=click.Choice(list(MAPPINGS)), help="Mappings.  [default: all]"
)
@click.option(
    "--folds", type=click.IntRange(0, 1000), default=5, show_default=True, help="Cross-validation by run; 0 for none."
)
@click.option(
    "--resamples",
    type=click.IntRange(10, 100_000),
    default=1000,
    show_default=True,
    help="For the differences' intervals.",
)
@form_options
@output_options
@command_terms
def compare_command(
    slices: tuple[str, ...],
    mappings: tuple[str, ...],
    folds: int,
    resamples: int,
    outer: str | None,
    as_json: bool,
    as_csv: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Compare recurrence mappings on rows that they were not fitted to.

    \b
    loopscale compare runs.csv --hold-out R=16 --hold-out E=16 --hold-out "N>0.9B" --hold-out "D>400B"
    loopscale compare isodepth --hold-out R=8
    """
    settings = take_procedure(given)
    observations = read_runs(**given)
    result = compare(
        observations, slices, outer=outer, mappings=mappings or None, folds=folds, count=resamples, **settings
    )
    if as_json:
        rows = list(result.table().records())
        print_json({"kind": "comparison", "source": result.source, "outer": result.outer, "rows": rows})
    elif as_csv:
        click.echo(result.table().csv(), nl=False)
    else:
        out = console()
        for note in (*observations.notes, *result.notes):
            out.print(note, highlight=False)
        out.print(table(result), differences(result), sep="\n")


@verb("backtest")
@data_options
@click.option(
    "--decades",
    type=click.FloatRange(0, min_open=True),
    default=DECADES,
    show_default=True,
    help="Hide this many decades of the largest training compute.",
)
@click.option("--hold-out", metavar="SLICE", help='Hide these rows instead, like "C>1e21", N>1B, D>400B, R=16 or E=16.')
@click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.9,
    show_default=True,
    help="Share that intervals should cover.",
)
@click.option("--mapping", type=click.Choice(list(MAPPINGS)), help="Recurrence mapping.  [default: from the data]")
@click.option("--resamples", type=click.IntRange(2, 100_000), default=100, show_default=True, help="How many refits.")
@click.option("--figure", type=click.Path(), help="Save a figure of errors and intervals, as .png, .svg or .pdf.")
@form_options
@output_options
@command_terms
def backtest_command(
    decades: float,
    hold_out: str | None,
    level: float,
    mapping: str | None,
    resamples: int,
    figure: str | None,
    outer: str | None,
    as_json: bool,
    as_csv: bool,
    **given: Any,
) -> None:
    """Hide the largest runs, fit the rest, and say how far off and how well covered the predictions are.

    \b
    loopscale backtest runs.csv
    loopscale backtest runs.csv --hold-out "C>1e21" --keep "D/N >= 20" --figure backtest.png
    """
    settings = take_procedure(given)
    observations = read_runs(**given)
    text_output = not (as_json or as_csv)
    with progress_bar("Refitting resampled data", resamples) as progress:
        result = backtest(
            observations, decades=decades, hold_out=hold_out, level=level, rolling=text_output, resamples=resamples,
            progress=progress, outer=outer, mapping=mapping, **settings,
        )  # fmt: skip
    if figure is not None:
        save_figure(result.plot(), figure)
    if as_json:
        print_json(result.to_dict())
    elif as_csv:
        click.echo(result.table().csv(), nl=False)
    else:
        click.echo(result.summary())
        if result.origins:
            console().print(rich_table(result.origins))


def save_figure(figure: Any, path: str) -> None:
    """Write a figure; a file that cannot be written is one sentence."""
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the figure cannot be written: {error}") from None


@verb("fit")
@data_options
@click.option(
    "--mapping", type=click.Choice(list(MAPPINGS)), help="Recurrence mapping.  [default: chosen from the data]"
)
@form_options
@click.option(
    "--recipe",
    type=click.Choice([recipe.value for recipe in Recipe]),
    default="default",
    show_default=True,
    help="default: exact gradients and many starts. paper: the paper's procedure.",
)
@click.option("--starts", type=click.IntRange(1, 10_000), help="Starts of the search.")
@click.option(
    "--resample",
    "scheme",
    type=click.Choice([*(scheme.value for scheme in Scheme), "none"]),
    default="runs",
    show_default=True,
    help="How to resample for intervals; `paper` is too narrow.",
)
@click.option("--resamples", type=click.IntRange(2, 100_000), default=100, show_default=True, help="How many refits.")
@click.option("--name", help="What to call the law.  [default: the file's name]")
@click.option("--out", type=click.Path(), help="Save the law, with its resampled laws, as JSON for --law.")
@click.option("--report", type=click.Path(), help="Save a report with figures, as .html or .md.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
@command_terms
def fit_command(
    mapping: str | None,
    outer: str | None,
    recipe: str,
    starts: int | None,
    scheme: str,
    resamples: int,
    name: str | None,
    out: str | None,
    report: str | None,
    as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Fit a scaling law to a sweep, with calibrated intervals.

    RUNS is a CSV or Parquet file with a row for each (run, D), or `simulated`, or the measured `micro` sweep
    that ships with loopscale, or a public one: epoch-chinchilla, clark-routing, isodepth.

    \b
    loopscale fit runs.csv --out law.json --report fit.html
    loopscale plan --flops 5e21 --memory 3GB --bits int4 --law law.json
    loopscale fit micro --mapping bounded
    loopscale fit runs.csv --mapping bounded --fix c=1.35 --columns D=tokens_seen --units D=1B
    """
    if report is not None:
        check_report_path(report)
    settings = take_procedure(given) | ({} if starts is None else {"starts": starts})
    observations = read_runs(**given)
    label = name or Path(given["runs"]).name.split(".")[0]
    count = 0 if scheme == "none" else resamples
    with progress_bar("Refitting resampled data", count) as progress:
        result = fit(
            observations, outer=outer, mapping=mapping, recipe=Recipe(recipe), name=label, resamples=count,
            scheme=Scheme.RUNS if scheme == "none" else Scheme(scheme), progress=progress, **settings,
        )  # fmt: skip
    if out is not None:
        result.law.save(out)
    if report is not None:
        from loopscale.figures.reports import fit_report

        fit_report(result).save(report)
    if as_json:
        print_json(result.to_dict())
    else:
        click.echo(result.summary())


@verb("isoflop")
@data_options
@click.option("--level", type=click.FloatRange(0.01, 0.999), default=0.9, show_default=True, help="Of the intervals.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
def isoflop_command(runs: str, level: float, as_json: bool, **reading: Any) -> None:
    """Find the best size at each training budget by parabolas of the loss, and how it grows with compute.

    RUNS is a table of runs with several sizes at each of several budgets (Chinchilla's approach 2).

    \b
    loopscale isoflop runs.csv
    """
    result = isoflop(read_runs(runs, **reading), level=level)
    if as_json:
        print_json(result.to_dict())
    else:
        _print_isoflop(result)


def _print_isoflop(result: IsoFlop) -> None:
    rows = [
        (
            format_power(row["flops"]),
            str(row["rows"]),
            *(("", "", "", "") if row["left_out"] else _found(row)),
            row["left_out"],
        )
        for row in result.table().records()
    ]
    columns = ("FLOPs", "runs", "N*", f"{result.level:.0%} interval", "D*", "loss", "left out")
    print_table(f"Lowest points of parabolas: {result.source}", columns, rows, left=("left out",))
    (low, high), (fewest, most) = result.size_exponent_interval, result.token_exponent_interval
    console().print(
        f"N* ~ C^{result.size_exponent:.3f} ({low:.3f} to {high:.3f}), "
        f"D* ~ C^{result.token_exponent:.3f} ({fewest:.3f} to {most:.3f}); intervals of {result.level:.0%} from "
        "resampled residuals. A parabola is an approximation: wide ranges of N shift its lowest point.",
        highlight=False,
    )


def _found(row: dict[str, Any]) -> tuple[str, ...]:
    span = f"{format_count(row['size_low'])}–{format_count(row['size_high'])}"
    return format_count(row["size"]), span, format_count(row["tokens"]), f"{row['loss']:.4f}"
