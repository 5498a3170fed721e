"""A scaling law: outer form, recurrence mapping and named coefficients."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.core.errors import InputError, choice, nearest, shown
from loopscale.core.files import read_json, write_json
from loopscale.core.quantities import format_count
from loopscale.core.tables import Table
from loopscale.scaling.expressions import Law
from loopscale.scaling.forms import (
    Coefficient,
    Form,
    Inputs,
    NoRecurrence,
    OuterLaw,
    RecurrenceMapping,
    effective,
    mapping,
    outer_law,
)
from loopscale.scaling.points import RAW, Counting, Points, Units

SCHEMA = 1
FITTED = "fitted to "
"""How the source of a law starts that was fitted here."""
AXES = ("size", "tokens", "experts", "recurrence")


@dataclass(frozen=True)
class FittedRange:
    """The span of each axis that a law was fitted on; None where the source does not say."""

    size: tuple[float | None, float | None] = (None, None)
    """N_act, counted as the law counts."""
    tokens: tuple[float | None, float | None] = (None, None)
    experts: tuple[float | None, float | None] = (None, None)
    recurrence: tuple[float | None, float | None] = (None, None)
    epochs: tuple[float | None, float | None] = (None, None)
    """D / U, for laws of repeated data."""

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


TRUST_LEVELS: dict[str, float] = {"inside": 1.0, "near": 3.0, "far": 10.0, "beyond": math.inf}
"""Levels of trust, by how many times beyond the fitted range a point may lie along its worst axis."""


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
        """Return this with further reasons, at ``at_least`` that level."""
        order = list(TRUST_LEVELS)
        level = order[max(order.index(self.level), order.index(at_least))]
        return Trust(level, (*self.reasons, *reasons), self.factors)

    def worse(self, other: Trust) -> Trust:
        """Return the trust of two predictions together: the worse of each axis, and every reason once."""
        factors = {axis: max(factor, other.factors[axis]) for axis, factor in self.factors.items()}
        reasons = tuple(dict.fromkeys((*self.reasons, *other.reasons)))
        return Trust(self.level, reasons, factors).noting(at_least=other.level)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"level": self.level, "reasons": list(self.reasons), "factors": dict(self.factors)}

    @property
    def axes(self) -> str:
        """The axes that lie outside, as text: "tokens 1.2x beyond, size inside"."""
        outside = [f"{axis} {times(factor)} beyond" for axis, factor in self.factors.items() if factor > 1]
        return ", ".join(outside) or "inside the fitted range"


def times(factor: float) -> str:
    """Write a ratio: ``1.2x``, ``30,000x``."""
    return f"{factor:,.0f}x" if factor >= 10 else f"{factor:.2g}x" if factor >= 1.05 else f"{factor:.3g}x"


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
    where the data have one row a run, which cannot tell them apart."""

    def __post_init__(self) -> None:
        if not (np.isfinite([self.noise, self.growth, self.frontier]).all() and min(self.noise, self.growth) >= 0):
            raise InputError(f"spread: noise is {self.noise} and growth {self.growth}; both should be zero or more")
        if not self.frontier > 0:
            raise InputError(f"spread: frontier is {self.frontier}; it should be above zero, in FLOPs")

    @property
    def between(self) -> float | None:
        """The part of ``noise`` between runs."""
        return None if self.within is None else math.sqrt(max(self.noise**2 - self.within**2, 0.0))

    def decades(self, points: Points) -> FloatArray:
        """Return the decades of compute by which points lie beyond the data; zero within."""
        return np.asarray(np.maximum(np.log10(points.train_flops / self.frontier), 0.0))

    def variance(self, decades: FloatArray) -> FloatArray:
        """Return the variance of ln loss so many decades beyond the data, without that of the coefficients."""
        return self.noise**2 + self.growth**2 * decades


MOST_DECADES = 20.0
"""Decades beyond the data that widen an interval: more says nothing."""
DEGREES = 8
"""Degrees of freedom of Student's t in predictive intervals: tails a little heavier than normal."""


def student_quantile(level: float) -> float:
    """Return the two-sided quantile of Student's t, by its expansion about the normal quantile."""
    z, n = NormalDist().inv_cdf((1 + level) / 2), DEGREES
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


def tails(level: float) -> tuple[float, float]:
    """Return the two quantiles between which a share ``level`` lies."""
    if not 0 < level < 1:
        raise InputError(f"level is {level}; it should lie between 0 and 1, as 0.9")
    return (1 - level) / 2, (1 + level) / 2


@dataclass(frozen=True)
class ScalingLaw:
    """Loss of a model from its size, tokens, experts and recurrence.

    Call it on :class:`Points`. It is callable on arrays, knows its exact gradients, the simpler laws it
    contains, its units, and the range it was fitted on.
    """

    outer: OuterLaw
    mapping: RecurrenceMapping
    coefficients: Mapping[str, float]
    units: Units
    counts: Counting
    name: str = "law"
    source: str = ""
    note: str = ""
    rmse: float | None = None
    """The fit's root-mean-square error in nats."""
    noise: float | None = None
    """Robust standard deviation of the losses about the law, in nats: one diverged run does not move it."""
    spread: Spread | None = None
    """What predictive intervals add to the uncertainty of the coefficients; None where it was not estimated."""
    fitted_range: FittedRange = FittedRange()
    resamples: FloatArray | None = field(default=None, compare=False, repr=False)
    """Coefficients of refits on resampled data, one row each, columns as in ``names``."""
    resampled_by: str = field(default="", compare=False)
    """How the resamples were made, where that matters to a reader: "a simulated sweep"."""

    def __post_init__(self) -> None:
        expected, stated = self.names, set(self.coefficients)
        for name in self.coefficients:
            if name not in expected:
                raise InputError(f"{self.name}: coefficient {shown(name)} is unknown{nearest(name, expected)}")
        for name in expected:
            if name not in stated:
                raise InputError(
                    f"{self.name}: coefficient {name!r} is missing; {self.form} needs {', '.join(expected)}"
                )
        if not isinstance(self.counts, Counting):
            object.__setattr__(self, "counts", choice(Counting, self.counts, f"{self.name}: counts"))
        values = {name: float(self.coefficients[name]) for name in expected}
        _check_values(self, values)
        object.__setattr__(self, "coefficients", MappingProxyType(values))
        if self.rmse is not None and not (np.isfinite(self.rmse) and self.rmse >= 0):
            raise InputError(f"{self.name}: rmse is {self.rmse}; it should be zero or more")
        if self.resamples is not None:
            object.__setattr__(self, "resamples", _checked_resamples(self))

    def __hash__(self) -> int:
        return hash((self.name, self.form, tuple(self.coefficients.items())))

    @cached_property
    def form(self) -> Form:
        """The outer law and the mapping, without coefficients."""
        return Form(self.outer, self.mapping)

    @property
    def terms(self) -> tuple[Coefficient, ...]:
        """The coefficients with their meaning and search range, in order."""
        return self.form.coefficients

    @property
    def names(self) -> tuple[str, ...]:
        """The coefficients' names, in the order of gradients and resamples."""
        return self.form.names

    def points(
        self,
        active: ArrayLike,
        tokens: ArrayLike,
        recurrence: ArrayLike = 1.0,
        experts: ArrayLike = 1.0,
        loop: ArrayLike | None = None,
        total: ArrayLike | None = None,
        embedding: ArrayLike = 0.0,
        unique_tokens: ArrayLike | None = None,
    ) -> Points:
        """Return models, given without embeddings, as this law counts them: ``embedding`` is added if it does."""
        return self.counts.points(active, tokens, recurrence, experts, loop, total, embedding, unique_tokens)

    def __call__(self, points: Points) -> FloatArray:
        """Return the predicted loss, in nats per token."""
        return self._loss(self.coefficients, points)

    def resampled(self, points: Points, *, own: bool = False) -> FloatArray:
        """Return the losses that each resampled law predicts: one leading axis more than the points have.

        With ``own`` the law's own loss comes first.
        """
        if self.resamples is None:
            raise InputError(f"{self.name}: this law carries no resampled laws; fit it with resampling first")
        rows = np.vstack([list(self.coefficients.values()), self.resamples]) if own else self.resamples
        columns = rows.T.reshape(len(self.names), -1, *([1] * len(points.shape)))
        return self._loss(dict(zip(self.names, columns, strict=True)), points)

    @property
    def uncertainty(self) -> str:
        """What the resampled laws are, or why there are none: "not published" for a law taken from a paper."""
        if self.resamples is not None:
            return f"from {self.resampled_by or f'{len(self.resamples)} resampled laws'}"
        fitted = self.source.startswith(FITTED)
        return "not estimated: the law was fitted without resampling" if fitted else "not published"

    @property
    def eps(self) -> float | None:
        """The least difference of loss that counts, in nats: the robust noise, or the RMSE where that is unknown."""
        return self.rmse if self.noise is None else self.noise

    def interval(self, points: Points, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """Return the interval of the law alone: where a share ``level`` of the resampled laws put the loss."""
        low, high = np.quantile(self.resampled(points), tails(level), axis=0)
        return low, high

    def predictive_interval(self, points: Points, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """Return the interval for the loss of a new run: uncertain coefficients, noise, and error beyond the data."""
        if self.spread is None:
            raise InputError(f"{self.name}: this law carries no predictive spread; fit it again with resampling")
        low, high = np.quantile(np.log(self.resampled(points)), tails(0.9), axis=0)
        law_deviation = (high - low) / (2 * NormalDist().inv_cdf(0.95))
        distance = np.maximum(self.spread.decades(points), self.decades_outside(points))
        half = student_quantile(level) * np.sqrt(law_deviation**2 + self.spread.variance(distance))
        loss = self(points)
        return loss * np.exp(-half), loss * np.exp(half)

    def decades_outside(self, points: Points) -> FloatArray:
        """Return how far points lie outside the fitted range, in decades summed over its axes; zero inside.

        Ten times the size at given tokens is one decade, as it is in compute.
        """
        decades = np.zeros(points.shape)
        for axis, value in self._along(points).items():
            decades = decades + np.minimum(np.log10(self.fitted_range.factor(axis, value)), MOST_DECADES)
        return decades

    def resampled_laws(self) -> Iterator[ScalingLaw]:
        """Yield each resampled law as a separate law."""
        for row in [] if self.resamples is None else self.resamples.tolist():
            yield replace(self, coefficients=dict(zip(self.names, row, strict=True)), resamples=None)

    def value_and_gradient(self, points: Points) -> tuple[FloatArray, FloatArray]:
        """Return the loss and its derivative by every coefficient, stacked along a last axis as ``names``."""
        loss, by = self.form.gradient(self.coefficients, inputs(self.form, points, self.units))
        columns = [np.broadcast_to(by[name], points.shape) for name in self.names]
        return np.broadcast_to(loss, points.shape), np.stack(columns, axis=-1)

    def gain(self, points: Points) -> FloatArray:
        """Return g_eff = (N_eff - N_act) / N_loop: what looping adds, in loop blocks."""
        with np.errstate(all="ignore"):
            gain = self.mapping.gain(self.coefficients, points.recurrence, _ratio(self.mapping, points))
            return self._finite(gain, "gain")

    def effective_parameters(self, points: Points) -> FloatArray:
        """Return N_eff = N_act + g_eff N_loop: the capacity the law credits to the looped model."""
        return np.asarray(effective(points.active, points.loop_block, self.gain(points)))

    def multiplier(self, points: Points) -> FloatArray:
        """Return rho_eff = N_eff / N_act (eq. rho-effective)."""
        return self.effective_parameters(points) / points.active

    def largest_multiplier(self, points: Points) -> FloatArray:
        """Return rho_eff for R → ∞: the most that looping can make of these parameters."""
        if points.loop is None:
            raise InputError("points: loop (N_loop) is needed to know what looping can reach")
        with np.errstate(all="ignore"):  # an unbounded gain of an empty loop is still nothing
            asymptote = self.mapping.asymptote(self.coefficients, _ratio(self.mapping, points))
            return 1.0 + np.where(points.loop > 0, asymptote * points.loop / points.active, 0.0)

    def extrapolated(self, points: Points) -> dict[str, BoolArray]:
        """Tell, axis by axis, where the points lie outside the range that the law was fitted on."""
        return {axis: self.fitted_range.outside(axis, value) for axis, value in self._along(points).items()}

    def _along(self, points: Points) -> dict[str, FloatArray]:
        """Return the points along each axis that the law has a range of."""
        at = dict(zip(AXES, (points.active, points.tokens, points.experts, points.recurrence), strict=True))
        return at | ({"epochs": points.tokens / points.unique} if self.outer.uses_unique else {})

    def trust(self, points: Points) -> Trust:
        """Return how far the law's loss at one point can be trusted; of several points, at the farthest."""
        at = (points.active, points.tokens, points.experts, points.recurrence)
        factors, reasons = {}, []
        for axis, value in zip(AXES, at, strict=True):
            span = getattr(self.fitted_range, axis)
            factor = self.fitted_range.factor(axis, value)
            factors[axis] = float(np.max(factor))
            if factors[axis] > 1:
                worst = float(np.ravel(value)[int(np.argmax(factor))])
                reasons.append(_outside_reason(axis, worst, factors[axis], span))
            elif None in span:
                reasons.append(f"the law's source does not state the whole fitted range of {axis}")
        reasons += [f"the law is degenerate: {warning}" for warning in self.degenerate]
        level = max(self.trust_levels(points).ravel().tolist(), key=list(TRUST_LEVELS).index)
        return Trust(level, tuple(reasons), factors)

    def trust_levels(self, points: Points) -> NDArray[np.str_]:
        """Return the level of trust in the loss at each point: by its worst axis, lower for a poorly known law."""
        at = zip(AXES, (points.active, points.tokens, points.experts, points.recurrence), strict=True)
        most = np.ones(points.shape)
        for axis, value in at:
            most = np.maximum(most, self.fitted_range.factor(axis, value))
        stated = all(None not in getattr(self.fitted_range, axis) for axis in AXES)
        names = list(TRUST_LEVELS)
        least = names.index("far" if self.degenerate else "inside" if stated else "near")
        return np.array(names)[np.maximum(np.searchsorted(list(TRUST_LEVELS.values()), most), least)]

    @property
    def degenerate(self) -> tuple[str, ...]:
        """Why the coefficients mean nothing, as the fit's warnings in ``note`` say; empty for a sound law."""
        sign = "degenerate: "
        return tuple(part.removeprefix(sign) for part in self.note.split("; ") if part.startswith(sign))

    def at_one_expert(self) -> ScalingLaw:
        """Return the dense law that this one is at E = 1 (proposition moe-loop-equivalence)."""
        return self._reduced(*self.outer.at_one_expert(self.coefficients), *self.mapping.dense(self.coefficients))

    def at_one_pass(self) -> ScalingLaw:
        """Return the law without recurrence that this one is at R = 1."""
        kept = {term.name: self.coefficients[term.name] for term in self.outer.coefficients}
        return self._reduced(self.outer, kept, NoRecurrence(), {})

    def in_units(self, units: Units) -> ScalingLaw:
        """Return the same law with its coefficients written for other units."""
        by_N, by_D = units.parameters / self.units.parameters, units.tokens / self.units.tokens
        coefficients = self.outer.rescaled(self.coefficients, by_N, by_D)
        resamples = None
        if self.resamples is not None:
            columns = dict(zip(self.names, self.resamples.T, strict=True))
            resamples = np.stack(list(self.outer.rescaled(columns, by_N, by_D).values()), axis=1)
        return replace(self, coefficients=coefficients, units=units, resamples=resamples)

    def to_dict(self) -> dict[str, Any]:
        """Return the law as plain values, the content of its JSON file."""
        data: dict[str, Any] = {
            "kind": "law",
            "schema": SCHEMA,
            "name": self.name,
            "source": self.source,
            "note": self.note,
            "outer": self.outer.saved(),
            "mapping": self.mapping.name,
            "coefficients": dict(self.coefficients),
            "units": {"parameters": self.units.parameters, "tokens": self.units.tokens},
            "counts": self.counts.value,
            "rmse": self.rmse,
            "noise": self.noise,
            "spread": None if self.spread is None else asdict(self.spread),
            "range": {axis: list(getattr(self.fitted_range, axis)) for axis in self._axes},
        }
        if self.resamples is not None:
            data["resamples"] = self.resamples.tolist()
        if self.resampled_by:
            data["resampled_by"] = self.resampled_by
        return data

    @classmethod
    def from_dict(cls, data: object, where: str = "law") -> ScalingLaw:
        """Read a law from plain values; ``where`` names their origin in errors."""
        from loopscale.core.schemas import parse
        from loopscale.scaling.schema import LawFile  # pydantic is slow to import

        file = parse(LawFile, data, where)
        try:
            return cls(
                outer=_outer(file.outer),
                mapping=mapping(file.mapping),
                coefficients=file.coefficients,
                units=Units(file.units.parameters, file.units.tokens),
                counts=file.counts,
                name=file.name,
                source=file.source,
                note=file.note,
                rmse=file.rmse,
                noise=file.noise,
                spread=None if file.spread is None else Spread(**file.spread.model_dump()),
                fitted_range=FittedRange(
                    **{axis: getattr(file.range, axis) or (None, None) for axis in (*AXES, "epochs")}
                ),
                resamples=None if file.resamples is None else _matrix(file.resamples),
                resampled_by=file.resampled_by,
            )
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the law as JSON."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> ScalingLaw:
        """Read a law that :meth:`save` wrote, or one written by hand in that form."""
        return cls.from_dict(read_json(path), str(path))

    def table(self) -> Table:
        """Return the coefficients in the law's own units and for raw counts: ``coefficient, value, raw, meaning``."""
        raw = self.in_units(RAW).coefficients if self.outer.rescales else self.coefficients
        return Table({
            "coefficient": list(self.names),
            "value": list(self.coefficients.values()),
            "raw": [float(raw[name]) for name in self.names],
            "meaning": [term.meaning for term in self.terms],
        })  # fmt: skip

    def equation(self) -> str:
        """Return the law as papers print it: raw counts and, for Chinchilla's form, positive exponents."""
        if not self.outer.rescales:
            scale = (
                ""
                if self.units == RAW
                else f"; N and D in units of {self.units.parameters:g} and {self.units.tokens:g}"
            )
            return f"{self.outer.equation(self.coefficients)}{scale}"
        text = self.outer.equation(self.in_units(RAW).coefficients)
        return f"{text}, N = N_act + g(R) N_loop" if self.mapping.loops else text

    def __str__(self) -> str:
        return f"{self.name}: {self.form}; {json.dumps(dict(self.coefficients))}"

    def __repr__(self) -> str:
        resampled = "" if self.resamples is None else f", {len(self.resamples)} resampled laws"
        rmse = "" if self.rmse is None else f", RMSE {self.rmse:.4g}"
        return f"<ScalingLaw {self.name!r}: {self.form}{rmse}{resampled}>"

    def _repr_html_(self) -> str:
        title = f"<p><b>{escape(self.name)}</b>: {escape(str(self.form))}. {escape(self.source)}</p>"
        return title + self.table()._repr_html_()

    @property
    def _axes(self) -> tuple[str, ...]:
        return AXES if self.fitted_range.epochs == (None, None) else (*AXES, "epochs")

    def _loss(self, c: Mapping[str, Any], points: Points) -> FloatArray:
        with np.errstate(all="ignore"):  # a value that is not finite is reported below
            return self._finite(self.form.loss(c, inputs(self.form, points, self.units)), "loss")

    def _finite(self, values: Any, what: str) -> FloatArray:
        array = np.asarray(values)
        if not np.isfinite(array).all():
            raise InputError(f"{self.name}: its coefficients give no finite {what} here; check them and their units")
        return array

    def _reduced(
        self, outer: OuterLaw, base: Mapping[str, Any], recurrence: RecurrenceMapping, gain: Mapping[str, Any]
    ) -> ScalingLaw:
        return replace(
            self, outer=outer, mapping=recurrence, coefficients={**base, **gain}, resamples=None,
            name=f"{self.name} (reduced)",
        )  # fmt: skip


def inputs(form: Form, points: Points, units: Units) -> Inputs:
    """Return what ``form`` is evaluated on at ``points``, in the units of its coefficients."""
    return Inputs(
        N=points.active / units.parameters,
        D=points.tokens / units.tokens,
        E=points.experts,
        R=points.recurrence,
        m=_ratio(form.mapping, points),
        loop=points.loop_block / units.parameters if form.mapping.loops else 0.0,
        U=points.unique / units.tokens if form.outer.uses_unique else None,
    )


def _ratio(recurrence: RecurrenceMapping, points: Points) -> FloatArray:
    return points.m if recurrence.needs_ratio else np.float64(1.0)  # type: ignore[return-value]


def _outside_reason(axis: str, value: float, factor: float, span: tuple[float | None, float | None]) -> str:
    low, high = (None if end is None else format_count(end) for end in span)
    fitted = f"up to {high}" if low is None else f"from {low}" if high is None else f"{low} to {high}"
    side = "below" if span[0] is not None and value < span[0] else "beyond"
    return f"{axis} {format_count(value)} is {times(factor)} {side} the fitted range ({fitted})"


def _check_values(law: ScalingLaw, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        if not np.isfinite(value):
            raise InputError(f"{law.name}: coefficient {name!r} is {value}; it should be a finite number")
    for term in law.terms:
        if term.positive and values[term.name] <= 0:
            raise InputError(f"{law.name}: coefficient {term.name!r} is {values[term.name]}; it should be above zero")
    if "E_start" in values and not values["E_start"] < values["E_max"]:
        raise InputError(
            f"{law.name}: E_start is {values['E_start']} and E_max {values['E_max']}; E_start should be the smaller"
        )


def _checked_resamples(law: ScalingLaw) -> FloatArray:
    array = np.asarray(law.resamples, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != len(law.names) or not len(array) or not np.isfinite(array).all():
        raise InputError(
            f"{law.name}: resamples should be rows of {len(law.names)} finite numbers, in the order "
            + ", ".join(law.names)
        )
    for row in array:
        _check_values(law, dict(zip(law.names, row.tolist(), strict=True)))
    return array


def _outer(stored: Any) -> OuterLaw:
    """Return the outer law that a file names or writes out."""
    if isinstance(stored, str):
        return outer_law(stored)
    return Law.from_expression(stored.expression, stored.bounds)


def _matrix(rows: list[list[float]]) -> FloatArray:
    try:
        return np.asarray(rows, dtype=np.float64)
    except ValueError:
        raise InputError("field 'resamples' should be rows of numbers, all of one length") from None
