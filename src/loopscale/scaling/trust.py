"""How far a law can be trusted: the range it was fitted on, levels of trust beyond it, and the spread of new runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.core.errors import InputError
from loopscale.core.files import fields_as_json
from loopscale.core.quantities import format_count
from loopscale.scaling.points import Points

AXES = ("size", "tokens", "experts", "recurrence")
"""The axes of a law's fitted range that every law has."""


NAMED_VALUE = {"size": "size {}", "experts": "experts E = {}", "recurrence": "recurrence R = {}"}
"""How a value is named in a sentence, by axis; others as "589B tokens"."""

Span: TypeAlias = tuple[float | None, float | None]
"""Lowest and highest value; None where an end is not known."""


@dataclass(frozen=True)
class FittedRange:
    """The span of each axis that a law was fitted on: [lowest, highest], None where the source does not say."""

    size: Span = (None, None)
    """Active parameters (N_act), counted as the law counts them."""
    tokens: Span = (None, None)
    experts: Span = (None, None)
    recurrence: Span = (None, None)
    epochs: Span = (None, None)
    """Tokens per unique token (D / U), for laws of repeated data."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) is None:  # as a file may write a span that is not known
                object.__setattr__(self, field.name, (None, None))
            low, high = getattr(self, field.name)
            if low is not None and high is not None and low > high:
                raise InputError(f"{field.name} is from {low:g} to {high:g}; the lowest comes first", where="range")

    def outside(self, axis: str, value: FloatArray) -> BoolArray:
        """Tell where ``value`` lies outside the span of ``axis``; rounding is forgiven."""
        low, high = getattr(self, axis)
        outside = np.zeros(np.shape(value), dtype=bool)
        if low is not None:
            outside |= value < low * (1 - 1e-9)
        if high is not None:
            outside |= value > high * (1 + 1e-9)
        return outside

    def factor(self, axis: str, value: FloatArray) -> FloatArray:
        """Return how many times beyond the span of ``axis`` each value lies, above or below it; 1 inside."""
        low, high = getattr(self, axis)
        factor = np.ones(np.shape(value))
        if low is not None:
            with np.errstate(over="ignore"):  # a value near zero is infinitely far below the range
                factor = np.maximum(factor, low / value)
        if high is not None:
            factor = np.maximum(factor, value / high)
        return np.where(self.outside(axis, value), factor, 1.0)

    def reason(self, axis: str, value: float) -> str:
        """Say how far ``value`` lies outside the span of ``axis``."""
        span = getattr(self, axis)
        low, high = (None if end is None else format_count(end) for end in span)
        fitted = f"up to {high}" if low is None else f"from {low}" if high is None else f"{low} to {high}"
        side = "below" if span[0] is not None and value < span[0] else "past"
        factor = float(self.factor(axis, np.asarray(value)))
        named = NAMED_VALUE.get(axis, f"{{}} {axis}").format(format_count(value))
        return f"{named} is {times(factor)} {side} the fitted range ({fitted})"

    def to_dict(self) -> dict[str, list[float | None]]:
        """Return the spans as plain values; epochs only where they are known."""
        axes = AXES if self.epochs == (None, None) else (*AXES, "epochs")
        return {axis: list(getattr(self, axis)) for axis in axes}


TRUST_LEVELS: dict[str, float] = {"inside": 1.0, "near": 3.0, "far": 10.0, "beyond": math.inf}
"""Levels of trust, by the largest factor by which a point may lie outside the fitted range along any axis."""


@dataclass(frozen=True)
class Trust:
    """How far a prediction can be trusted: a level, the reasons for it, and how far beyond the data each axis is.

    ``inside``: within the fitted range. ``near``: up to 3x beyond it. ``far``: up to 10x. ``beyond``: farther.
    """

    level: str
    reasons: tuple[str, ...]
    factors: Mapping[str, float]
    """By axis: how many times beyond the fitted range, 1 inside it."""

    def noting(self, *reasons: str, at_least: str = "inside") -> Trust:
        """Return this with further reasons, at ``at_least`` that level; empty reasons are left out."""
        order = list(TRUST_LEVELS)
        level = order[max(order.index(self.level), order.index(at_least))]
        return Trust(level, (*self.reasons, *filter(None, reasons)), self.factors)

    def worse(self, other: Trust) -> Trust:
        """Return the trust of two predictions together: the worse of each axis, and every reason once."""
        factors = {axis: max(factor, other.factors[axis]) for axis, factor in self.factors.items()}
        reasons = tuple(dict.fromkeys((*self.reasons, *other.reasons)))
        return Trust(self.level, reasons, factors).noting(at_least=other.level)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return fields_as_json(self)

    @property
    def axes(self) -> str:
        """The axes that lie outside, as text: "1.2x in tokens, 2x in experts"."""
        outside = [f"{times(factor)} in {axis}" for axis, factor in self.factors.items() if factor > 1]
        return ", ".join(outside) or "inside the fitted range"


def times(factor: float) -> str:
    """Write a ratio: ``1.2x``, ``30,000x``."""
    return f"{factor:,.0f}x" if factor >= 10 else f"{factor:.2g}x" if factor >= 1.05 else f"{factor:.3g}x"


WIDEST, STEEPEST = 10.0, 1.0
"""The largest standard deviation and drift per decade of ln loss in a law file: far above those of any sweep, and small
enough that no interval overflows."""


@dataclass(frozen=True)
class Spread:
    """How far the loss of a new run may lie from the law, beyond the uncertainty of its coefficients.

    Standard deviations of ln loss. The variance of the law's own error grows in proportion to the decades of training
    compute beyond the data, as a random walk does. docs/prediction.md explains how a fit estimates it.
    """

    noise: float
    """Of a run about the law, within the range of the data."""
    growth: float
    """Of the law's error one decade of compute beyond the data."""
    frontier: float
    """Largest training compute in the data, in FLOPs."""
    backtests: int = 0
    """Backtests inside the sweep that ``growth`` rests on; it rests on other sweeps alone where this is zero."""
    within: float | None = None
    """The part of ``noise`` that rows of one run have apart; the rest is between runs, and a new run has both. None
    where the data have one row a run, which does not separate them."""
    drift: float = 0.0
    """By how much ln loss comes out below the law, per decade of compute beyond the data."""

    def __post_init__(self) -> None:
        for name, least, most in (("noise", 0, WIDEST), ("growth", 0, WIDEST), ("drift", -STEEPEST, STEEPEST)):
            value = getattr(self, name)
            if not least <= value <= most:
                raise InputError(f"{name} is {value:g}; it should be from {least:g} to {most:g}", where="spread")
        if not 1 <= self.frontier < np.inf:
            raise InputError(f"frontier is {self.frontier:g}; it should be a number of FLOPs", where="spread")

    @property
    def between(self) -> float | None:
        """The part of ``noise`` between runs."""
        return None if self.within is None else math.sqrt(max(self.noise**2 - self.within**2, 0.0))

    def decades(self, points: Points) -> FloatArray:
        """Return the decades of compute by which points lie beyond the data; zero within."""
        return np.asarray(np.minimum(np.maximum(np.log10(points.train_flops / self.frontier), 0.0), MOST_DECADES))

    def variance(self, decades: FloatArray) -> FloatArray:
        """Return the variance of ln loss so many decades beyond the data, without that of the coefficients."""
        return self.noise**2 + self.growth**2 * decades


TYPICAL_GROWTH = 0.026
"""Error of a law one decade beyond its data in public sweeps."""
MOST_DECADES = 20.0
"""Decades beyond the data that widen an interval: more says nothing."""
DEGREES = 8
"""Degrees of freedom of Student's t in predictive intervals: tails a little heavier than normal."""
# The interval of a forecast by law and frontier has four constants. ``experiments/forecast/calibrate.py`` estimates
# them by maximum likelihood on cut public sweeps, and scores each sweep with those estimated without it.
FORECAST_DEGREES = 4
"""Degrees of freedom of Student's t. Likelihood says 6.5, with which sweeps left out are covered too seldom."""
FORM_ERROR, FORM_POWER = 0.011, 0.7
"""Error of ln loss one decade beyond the data that is in neither the law nor the frontier (.0112 by likelihood), and
the power of the decades with which it grows (.68)."""
OFF_FRONTIER = 0.1
"""Error of a law's distance between a run and the frontier, as a share of it (.093 by likelihood)."""


class LawForecast(NamedTuple):
    """The loss of a new run by a law with its frontier, and the parts that it is made of. Losses in nats per token."""

    loss: FloatArray
    low: FloatArray
    high: FloatArray
    level: float
    law: FloatArray
    """By the fitted law alone."""
    frontier: FloatArray | None
    """By the frontier, at the run's distance from it; None where the law has no frontier."""
    weight: FloatArray
    """Share of the frontier in the forecast; 0 without one."""
    decades: FloatArray
    """How far beyond the data."""


def tails(level: float) -> tuple[float, float]:
    """Return the two quantiles between which a share ``level`` lies."""
    if not 0 < level < 1:
        raise InputError(f"`level` is {level}", remedy="it should lie between 0 and 1, as 0.9")
    return (1 - level) / 2, (1 + level) / 2
