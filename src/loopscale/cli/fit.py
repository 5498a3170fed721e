"""``loopscale fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loopscale.architecture import RUNG_EXPERTS, RUNGS
from loopscale.cli.data import data_options, form_options, read_runs, take_procedure
from loopscale.cli.options import (
    COUNT,
    COUNTS,
    EXPERTS,
    INTEGERS,
    RUNG_LIST,
    WHOLE,
    console,
    output_options,
    print_json,
    progress_bar,
)
from loopscale.errors import InputError
from loopscale.files import read_json
from loopscale.fit import Recipe, Scheme, fit, resample, summary, values
from loopscale.fit.compare import compare, differences, table
from loopscale.fit.fitting import default_form
from loopscale.fit.summary import law_with_warnings
from loopscale.laws import MAPPINGS
from loopscale.next.candidates import RECURRENCES, Goal, Target, ladder_candidates
from loopscale.next.choose import MOST_RUNS, next_runs
from loopscale.report import check_report_path


@click.command("compare")
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
    found = compare(
        observations, slices, outer=outer, mappings=mappings or None, folds=folds, count=resamples, **settings
    )
    if as_json:
        rows = list(found.table().records())
        print_json({"kind": "comparison", "source": found.source, "outer": found.outer, "rows": rows})
    elif as_csv:
        click.echo(found.table().csv(), nl=False)
    else:
        out = console()
        for note in (*observations.notes, *found.notes):
            out.print(note, highlight=False)
        out.print(table(found), differences(found), sep="\n")


@click.command("next")
@data_options
@click.option("--budget", type=COUNT, required=True, help="FLOPs for new runs, like 1e20.")
@click.option(
    "--for",
    "plan_path",
    type=click.Path(),
    required=True,
    help="The plan to make sure of: a file of `loopscale plan --out`.",
)
@click.option(
    "--goal",
    type=click.Choice([each.value for each in Goal]),
    default=Goal.CHOICE.value,
    show_default=True,
    help="choice: the differences to its rivals. predictions: its losses.",
)
@click.option("--rung", "rungs", type=RUNG_LIST, help=f"Rungs to choose runs from.  [default: {','.join(RUNGS)}]")
@click.option("--experts", type=EXPERTS, help="Expert counts to choose from.")
@click.option("--recurrence", "recurrences", type=INTEGERS, help="Recurrences to choose from.")
@click.option(
    "--tokens", type=COUNTS, help="Token counts to choose from.  [default: half the least to twice the most seen]"
)
@click.option("--most", type=WHOLE, default=MOST_RUNS, show_default=True, help="The most runs to choose.")
@click.option(
    "--mapping", type=click.Choice(list(MAPPINGS)), help="Recurrence mapping.  [default: what the data call for]"
)
@click.option(
    "--resamples",
    type=click.IntRange(0, 1000),
    default=16,
    show_default=True,
    help="Refits to average over; 0 for none.",
)
@form_options
@output_options
def next_command(
    budget: float,
    plan_path: str,
    goal: str,
    rungs: tuple[str, ...] | None,
    experts: tuple[float, ...] | None,
    recurrences: tuple[int, ...] | None,
    tokens: tuple[float, ...] | None,
    most: int,
    mapping: str | None,
    resamples: int,
    outer: str | None,
    as_json: bool,
    as_csv: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Choose the runs to train next: those that make a plan surest per FLOP.

    \b
    loopscale plan --flops 5e21 --memory 3GB --bits int4 --law law.json --out plan.json
    loopscale next runs.csv --budget 1e21 --for plan.json
    """
    plan = read_json(plan_path)
    if not isinstance(plan, dict) or plan.get("kind") != "plan":
        raise InputError(f"{plan_path}: this is not a plan; make one with `loopscale plan … --out {plan_path}`")
    settings = take_procedure(given)
    observations = read_runs(**given)
    try:
        target = Target.of_plan(plan, observations.counts, Goal(goal))
    except InputError as error:
        raise InputError(f"{plan_path}: {error}") from None
    form, recurrence = default_form(observations, outer, mapping)
    found = fit(observations, outer=form, mapping=recurrence, **settings)
    if resamples:
        found = resample(found, count=resamples, seed=settings["seed"])
    pool = ladder_candidates(
        observations,
        rungs=rungs or tuple(RUNGS),
        experts=experts or RUNG_EXPERTS,
        recurrences=recurrences or RECURRENCES,
        tokens=tokens,
    )
    design = next_runs(found, budget, target, candidates=pool, most=most)
    if as_json:
        rows = list(design.table().records())
        print_json({"kind": "design", "goal": goal, "before": design.before, "after": design.after, "runs": rows})
    elif as_csv:
        click.echo(design.table().csv(), nl=False)
    else:
        console().print(str(design), highlight=False)


@click.command("fit")
@data_options
@click.option(
    "--mapping", type=click.Choice(list(MAPPINGS)), help="Recurrence mapping.  [default: what the data call for]"
)
@form_options
@click.option(
    "--recipe",
    type=click.Choice([each.value for each in Recipe]),
    default="default",
    show_default=True,
    help="default: exact gradients and many starts. paper: the paper's procedure.",
)
@click.option("--starts", type=click.IntRange(1, 10_000), help="Starts of the search.")
@click.option(
    "--resample",
    "scheme",
    type=click.Choice([*(each.value for each in Scheme), "none"]),
    default="runs",
    show_default=True,
    help="How to resample for intervals; `paper` is too narrow.",
)
@click.option("--resamples", type=click.IntRange(2, 100_000), default=100, show_default=True, help="How many refits.")
@click.option("--name", help="What to call the law.  [default: the file's name]")
@click.option("--out", type=click.Path(), help="Save the law, with its resampled laws, as JSON for --law.")
@click.option("--report", type=click.Path(), help="Save a report with figures, as .html or .md.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
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
    """Fit a scaling law to a sweep, with honest intervals.

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
    form, recurrence = default_form(observations, outer, mapping)
    called = name or Path(given["runs"]).name.split(".")[0]
    found = fit(observations, outer=form, mapping=recurrence, recipe=recipe, name=called, **settings)
    if scheme != "none":
        with progress_bar("Refitting resampled data", resamples) as progress:
            found = resample(found, scheme=scheme, count=resamples, seed=settings["seed"], progress=progress)
    if out is not None:
        law_with_warnings(found).save(out)
    if report is not None:
        from loopscale.figures.reports import fit_report

        fit_report(found).save(report)
    if as_json:
        print_json(values(found))
    else:
        click.echo(summary(found))
