"""Sweeps on the command line: RUNS, the options that say how to read it, and what it may name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from loopscale.cli.params import INTEGERS, QuantityType
from loopscale.core.errors import InputError, shown
from loopscale.core.files import is_file
from loopscale.core.quantities import parse_count
from loopscale.fitting import Observations
from loopscale.fitting.data.again import CHOICES, is_law_file, read_again
from loopscale.fitting.data.public import SWEEP_RECURRENCES, simulate_sweep
from loopscale.scaling import Counting, Reading, ScalingLaw

F = TypeVar("F", bound=Callable[..., Any])


def pair(text: str) -> tuple[str, str]:
    """Read ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        raise InputError(f"{shown(text)} is not NAME=VALUE")
    return name.strip(), value.strip()


def pairs(name: str, read: Callable[[str], tuple[str, Any]]) -> dict[str, Any]:
    """Return the settings of an option that is repeated, each time one NAME=VALUE; the command gets a dict."""
    return {"multiple": True, "type": QuantityType(name, read), "callback": lambda ctx, param, value: dict(value)}


def _unit(text: str) -> tuple[str, float]:
    name, value = pair(text)
    return name, parse_count(value, name)


def data_options(function: F) -> F:
    """Add RUNS and the options that say how to read it."""
    return click.argument("runs", type=click.Path())(reading_options(function))


def reading_options(function: F) -> F:
    """Add the options that say how to read a sweep."""
    options = (
        click.option("--columns", **pairs("OURS=THEIRS", pair), help="A column's other name, like D=seen."),
        click.option("--units", **pairs("COLUMN=UNIT", _unit), help="What a column counts in, like D=1B."),
        click.option(
            "--counts",
            type=click.Choice([counting.value for counting in Counting]),
            help="What the file's parameter counts include.  [default: without-embeddings]",
        ),
        click.option("--keep", metavar="EXPRESSION", help='Rows to use, like "D/N >= 20" or "width == 512".'),
        click.option("--balance", is_flag=True, help="Weight rows so that each compute budget counts alike."),
        click.option("--best-of", is_flag=True, help="Use the lowest loss of each model and token count."),
        click.option(
            "--strict", is_flag=True, help="Refuse rows without a loss, size or tokens; else they are skipped."
        ),
        click.option(
            "--simulated-recurrence",
            type=INTEGERS,
            default=SWEEP_RECURRENCES,
            help="Recurrences when RUNS is `simulated`; add 16 for the paper's held-out slice.  "
            f"[default: {','.join(map(str, SWEEP_RECURRENCES))}]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def read_runs(
    runs: str,
    *,
    columns: dict[str, str],
    units: dict[str, float],
    counts: str | None,
    keep: str | None,
    best_of: bool,
    balance: bool,
    strict: bool,
    simulated_recurrence: tuple[int, ...],
    name: str | None = None,
) -> Observations:
    """Return the sweep that RUNS names: a file, the file of a law, a sweep file, `simulated`, or a public sweep."""
    choices: dict[str, Any] = {
        "columns": columns,
        "units": units,
        "counts": counts,
        "keep": keep,
        "best_of": best_of,
        "balance": balance,
        "strict": strict,
    }
    if is_law_file(runs):
        return read_again(runs, partial(read_runs, name=name, simulated_recurrence=simulated_recurrence), choices)
    name = name or Path(runs).name.split(".")[0]
    if runs == "simulated" and not is_file(runs):
        sweep = simulate_sweep(recurrences=simulated_recurrence)
        sweep = replace(sweep, reading=Reading(runs))
        return Observations.of(sweep, keep=keep, best_of=best_of, balance=balance, name=name)
    if Path(runs).suffix == ".toml" or is_sweep_folder(runs):
        sweep = replace(read_sweep_runs(runs), reading=Reading(runs))
        return Observations.of(sweep, keep=keep, best_of=best_of, balance=balance, name=name)
    return Observations.of(runs, name=name, **choices)


def read_law_runs(data: str, law: ScalingLaw, options: dict[str, Any]) -> Observations:
    """Return a sweep to show with a law: read as for its fit where it is the law's own, unless options say more."""
    if law.provenance is None or law.provenance.reading.data != data:
        return read_runs(data, **options)
    choices = {name: options[name] for name in CHOICES}
    return read_runs(data, **options | law.provenance.reading.overruled(choices))


def take_runs(options: dict[str, Any], name: str | None = None) -> Observations:
    """Take RUNS and the options of reading out of a command's options, and read the sweep."""
    reading = (*CHOICES, "simulated_recurrence")
    return read_runs(options.pop("runs"), name=name, **{option: options.pop(option) for option in reading})


def is_sweep_folder(path: str) -> bool:
    """Tell whether ``path`` is a folder with the results of a sweep."""
    try:
        return (Path(path) / "sweep.sqlite").is_file()
    except (OSError, ValueError):  # too long for a path, or with a zero byte
        return False


def read_sweep_runs(file: str) -> Observations:
    """Return the observations of a sweep file, once its results are verified; damaged results are refused."""
    if is_sweep_folder(file):
        raise InputError(
            "this folder holds a sweep's results", where=file, remedy=f"give the sweep file, like {file}.toml"
        )
    from loopscale.sweep.export import observations
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.store import Store
    from loopscale.verify import verified

    sweep = read_sweep(file)
    with Store(sweep.results) as store:
        observed, _ = observations(sweep, store)
    return replace(observed, notes=(*observed.notes, *verified(sweep.results)))
