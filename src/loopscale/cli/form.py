"""The options of every command that fits: the form, held and bounded coefficients, and the objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from loopscale.cli.params import QuantityType, options
from loopscale.cli.reading import pair, pairs
from loopscale.core.errors import InputError, shown
from loopscale.fitting import Recipe
from loopscale.scaling import MAPPINGS, OUTER_LAWS, outer_law


def _outer(text: str) -> str:
    outer_law(text)
    return text


def _number(text: str, name: str = "") -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value != value or value in (float("inf"), float("-inf")):
        raise InputError(f"{shown(text)} is not a finite number", where=name)
    return value


def _fixed(text: str) -> tuple[str, float]:
    name, value = pair(text)
    return name, _number(value, name)


def _bounds(text: str) -> tuple[str, tuple[float, float]]:
    name, value = pair(text)
    low, colon, high = value.partition(":")
    if not colon:
        raise InputError(f"{shown(value)} is not LOW:HIGH", where=name, remedy=f"write it like {name}=0.1:2")
    return name, (_number(low, name), _number(high, name))


def _delta(text: str) -> float:
    """Read a Huber delta; NaN means an estimated one until the command gets None."""
    if text.strip().lower() in ("auto", "inf"):
        return float("nan" if text.strip().lower() == "auto" else "inf")
    value = _number(text)
    if value <= 0:
        raise InputError(f"{shown(text)} should be above zero, `auto` or `inf`")
    return value


mapping_option = click.option(
    "--mapping", type=click.Choice(list(MAPPINGS)), help="Recurrence mapping.  [default: chosen from the data]"
)
recipe_option = click.option(
    "--recipe",
    type=click.Choice([recipe.value for recipe in Recipe]),
    default="default",
    show_default=True,
    help="default: exact gradients and many starts. no-prior: the same without the priors of mapping general. "
    "paper: the paper's procedure.",
)


def resamples_option(
    default: int = 100, least: int = 2, most: int = 100_000, text: str = "How many refits."
) -> Callable[[Any], Any]:
    """Add ``--resamples``: how many fits to resampled data."""
    return click.option("--resamples", type=click.IntRange(least, most), default=default, show_default=True, help=text)


form_options = options(
    click.option(
        "--outer",
        type=QuantityType("NAME|EXPRESSION", _outer),
        help=f"Outer law: {', '.join(OUTER_LAWS)}, or an expression like 'c + A/N**alpha + B/D**beta'.  "
        "[default: chosen from the data]",
    ),
    click.option("--fix", "fixed", **pairs("NAME=VALUE", _fixed), help="Hold a coefficient, like c=1.5."),
    click.option("--tie", **pairs("NAME=NAME", pair), help="Tie two coefficients, like alpha=beta."),
    click.option("--bound", "bounds", **pairs("NAME=LOW:HIGH", _bounds), help="Search a coefficient in this range."),
    click.option(
        "--delta",
        type=QuantityType("NUMBER|auto|inf", _delta),
        default="1e-3",
        show_default=True,
        callback=lambda ctx, param, value: None if value != value else value,
        help="Huber delta on ln loss; `auto` estimates it, `inf` is least squares.",
    ),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of starts and resamples."),
)
"""``--outer`` and the options of the fit itself, each named as the argument of ``fit`` that it sets."""
