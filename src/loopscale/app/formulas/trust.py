"""Trust: how far a value lies outside a fitted range, and the predictive interval of a law."""

from __future__ import annotations

from typing import Any

from loopscale.app.formulas.inputs import Symbol, SymbolicObject, design
from loopscale.app.formulas.javascript import function
from loopscale.scaling import Points, ScalingLaw
from loopscale.scaling.trust import FittedRange, Spread

# Methods are called on symbolic objects, which no type checker takes for their owners.
_range: Any = FittedRange
_spread: Any = Spread
_law: Any = ScalingLaw
_points: Any = Points


class _SymbolicLaw(SymbolicObject):  # type: ignore[misc] # an Any
    """A law whose loss at ``x`` is the symbol ``x.loss``."""

    def __call__(self, _: Any) -> Any:
        return self.loss


def trust_formulas() -> str:
    """Return the functions of ranges and intervals, and m."""
    value = Symbol.named("value", 3.0)
    span = SymbolicObject("x", axis=(Symbol.named("low", 1.0), Symbol.named("high", 2.0)))
    span.outside = lambda axis, value: _range.outside(span, axis, value)
    x = design()
    low, high = _law.predictive_interval(_symbolic_law(x), x)
    return "".join(
        [
            function("rangeFactor", _range.factor(span, "axis", value), "low, high, value"),
            function("rangeOutside", _range.outside(span, "axis", value), "low, high, value"),
            function("predictiveLow", low, "x, spread"),
            function("predictiveHigh", high, "x, spread"),
            function("activeRatio", _points.m.fget(x)),
        ]
    )


def _symbolic_law(x: Any) -> Any:
    """Return a law that reads its loss, the ends of its resamples and its distance from the data as fields of ``x``."""
    spread = SymbolicObject("spread")
    spread.decades = lambda points: _spread.decades(spread, points)
    spread.variance = lambda decades: _spread.variance(spread, decades)
    law = _SymbolicLaw(
        "x", spread=spread, _known_spread=lambda: spread, resampled=lambda _: x.resampled,
        decades_outside=lambda _: x.decades_outside,
    )  # fmt: skip
    law.deviation = lambda points: _law.deviation(law, points)
    return law
