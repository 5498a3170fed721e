"""Options that name a sweep and how to read it, shared by ``fit``, ``compare`` and ``next``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from loopscale.cli.options import INTEGERS
from loopscale.errors import InputError, shown
from loopscale.files import is_file
from loopscale.fit import Observations
from loopscale.fit.data.public import MICRO, PUBLIC_FILES, SWEEP_RECURRENCES, load_micro, load_public, simulate_sweep
from loopscale.laws import OUTER_LAWS, Counting
from loopscale.quantities import parse_count

F = TypeVar("F", bound=Callable[..., Any])


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
            type=click.Choice([each.value for each in Counting]),
            default=Counting.WITHOUT_EMBEDDINGS.value,
            show_default=True,
            help="What the file's parameter counts include.",
        ),
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
            default=",".join(map(str, SWEEP_RECURRENCES)),
            show_default=True,
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
    counts: str,
    simulated_noise: float,
    simulated_recurrence: tuple[int, ...],
) -> Observations:
    """Return the sweep that RUNS names: a file, `simulated`, the shipped `micro`, or a public sweep."""
    if not is_file(runs) and runs == "simulated":
        return simulate_sweep(noise=simulated_noise, recurrences=simulated_recurrence)
    if not is_file(runs) and runs in MICRO:
        return load_micro(runs)
    if not is_file(runs) and runs in PUBLIC_FILES:
        return load_public(runs)
    named = dict(_pair(each, "--columns") for each in columns)
    scaled = {name: parse_count(value, f"--units {name}") for name, value in (_pair(each, "--units") for each in units)}
    return Observations.read(runs, columns=named or None, units=scaled or None, counts=Counting(counts))


def form_options(function: F) -> F:
    """Add ``--outer`` and the options of the fit itself."""
    options = (
        click.option(
            "--outer", type=click.Choice(list(OUTER_LAWS)), help="Outer law.  [default: what the data call for]"
        ),
        click.option("--fix", multiple=True, metavar="NAME=VALUE", help="Hold a coefficient, like c=1.5."),
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
        "fixed": {name: _number(value, f"--fix {name}") for name, value in (_pair(each, "--fix") for each in fix)},
        "bounds": {name: _range(value, name) for name, value in (_pair(each, "--bound") for each in bound)},
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
