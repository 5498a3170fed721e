"""Sweeps on the command line: RUNS, the options that say how to read it, and what it may name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from loopscale.cli.params import INTEGERS, QuantityType, options
from loopscale.core.errors import InputError, shown
from loopscale.core.files import is_file
from loopscale.core.quantities import count_of
from loopscale.fitting import Observations
from loopscale.fitting.data.again import CHOICES, is_law_file, read_again
from loopscale.fitting.data.public import SWEEP_RECURRENCES, simulate_sweep
from loopscale.scaling import Counting, Reading, ScalingLaw


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
    return name, count_of(value, name)


reading_options = options(
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
    click.option("--strict", is_flag=True, help="Refuse rows without a loss, size or tokens; else they are skipped."),
    click.option(
        "--simulated-recurrence",
        type=INTEGERS,
        default=SWEEP_RECURRENCES,
        help="Recurrences when RUNS is `simulated`; add 16 for the paper's held-out slice.  "
        f"[default: {','.join(map(str, SWEEP_RECURRENCES))}]",
    ),
)
"""How to read a sweep."""
data_options = options(click.argument("runs", type=click.Path()), reading_options)
"""RUNS, and how to read it."""


def read_runs(
    runs: str, *, simulated_recurrence: tuple[int, ...], name: str | None = None, **choices: Any
) -> Observations:
    """Return the sweep that RUNS names: a file, the file of a law, a sweep file, `simulated`, or a public sweep.

    ``choices`` are those of ``fitting.data.again.CHOICES``.
    """
    if is_law_file(runs):
        return read_again(runs, partial(read_runs, name=name, simulated_recurrence=simulated_recurrence), choices)
    name = name or Path(runs).name.split(".")[0]
    if runs == "simulated" and not is_file(runs):
        sweep = simulate_sweep(recurrences=simulated_recurrence)
    elif Path(runs).suffix == ".toml" or is_sweep_folder(runs):
        sweep = read_sweep_runs(runs)
    else:
        return Observations.of(runs, name=name, **choices)
    rows = {choice: choices[choice] for choice in ("keep", "best_of", "balance")}
    return Observations.of(replace(sweep, reading=Reading(runs)), name=name, **rows)


def read_law_runs(data: str, law: ScalingLaw, reading: dict[str, Any]) -> Observations:
    """Return a sweep to show with a law: read as for its fit where it is the law's own, unless options say more."""
    if law.provenance is None or law.provenance.reading.data != data:
        return read_runs(data, **reading)
    choices = {name: reading[name] for name in CHOICES}
    return read_runs(data, **reading | law.provenance.reading.overruled(choices))


def take_runs(values: dict[str, Any], name: str | None = None) -> Observations:
    """Take RUNS and the options of reading out of a command's values, and read the sweep."""
    reading = (*CHOICES, "simulated_recurrence")
    return read_runs(values.pop("runs"), name=name, **{option: values.pop(option) for option in reading})


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
