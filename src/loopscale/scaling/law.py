"""A scaling law: outer form, recurrence mapping and named coefficients."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
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
from loopscale.core.files import as_json, read_json, write_json
from loopscale.core.numerics import student_quantile
from loopscale.core.tables import Table
from loopscale.scaling.coefficients import Coefficient
from loopscale.scaling.form import Form, active_ratio, effective, inputs
from loopscale.scaling.frontier import Frontier, above_optimum, closeness, lowest_between
from loopscale.scaling.mappings import NoRecurrence, RecurrenceMapping
from loopscale.scaling.outer import OuterLaw
from loopscale.scaling.points import RAW, Counting, Points, Units
from loopscale.scaling.provenance import Provenance
from loopscale.scaling.trust import (
    AXES,
    DEGREES,
    FORECAST_DEGREES,
    FORM_ERROR,
    FORM_POWER,
    MOST_DECADES,
    OFF_FRONTIER,
    TRUST_LEVELS,
    FittedRange,
    LawForecast,
    Spread,
    Trust,
    tails,
)

SCHEMA = 2
"""Version of the law file. Files of version 1 state ``fitted`` and ``degenerate`` in prose."""
GROUPED, GROUPED_SCHEMA = "grouped-law", 1
"""The file of several laws that share their exponents, one for each group of runs."""


@dataclass(frozen=True)
class ScalingLaw:
    """Loss of a model from its size, tokens, experts and recurrence.

    Call it on ``Points``. It has exact gradients, the simpler laws that it contains, its units, and the range that it
    was fitted on.
    """

    outer: OuterLaw
    mapping: RecurrenceMapping
    coefficients: Mapping[str, float]
    units: Units
    counts: Counting
    name: str = "law"
    source: str = ""
    """Where the coefficients come from, for a reader: a publication, or the data."""
    note: str = ""
    """What a reader should know about the law."""
    fitted: bool = False
    """Whether loopscale fitted it; otherwise it is published or written by hand."""
    degenerate: tuple[str, ...] = ()
    """Why the data do not determine the coefficients; empty for a sound law."""
    rmse: float | None = None
    """The fit's root-mean-square error in nats."""
    noise: float | None = None
    """Robust standard deviation of the losses about the law, in nats: one diverged run does not move it."""
    spread: Spread | None = None
    """What predictive intervals add to the uncertainty of the coefficients; None where it was not estimated."""
    frontier: Frontier | None = field(default=None, repr=False)
    """The compute-optimal frontier that the same runs show, which corrects the law beyond them."""
    fitted_range: FittedRange = field(default_factory=FittedRange)
    resamples: FloatArray | None = field(default=None, compare=False, repr=False)
    """Coefficients of refits on resampled data, one row each, columns as in ``names``."""
    resampled_by: str = field(default="", compare=False)
    """How the resamples were made, where that matters to a reader: "a simulated sweep"."""
    provenance: Provenance | None = field(default=None, repr=False)
    """The data behind a fitted law and how they were read; None for published laws."""

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
        object.__setattr__(self, "counts", choice(Counting, self.counts, f"{self.name}: counts"))
        object.__setattr__(self, "degenerate", tuple(self.degenerate))
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
            raise InputError("this law has no resampled laws", where=self.name, remedy="fit it again with resampling")
        rows = np.vstack([list(self.coefficients.values()), self.resamples]) if own else self.resamples
        columns = rows.T.reshape(len(self.names), -1, *([1] * len(points.shape)))
        return self._loss(dict(zip(self.names, columns, strict=True)), points)

    @property
    def uncertainty(self) -> str:
        """What the resampled laws are, or why there are none: "not published" for a law taken from a paper."""
        if self.resamples is not None:
            return f"from {self.resampled_by or f'{len(self.resamples)} resampled laws'}"
        return "not estimated: the law was fitted without resampling" if self.fitted else "not published"

    @property
    def eps(self) -> float | None:
        """The least difference of loss that counts, in nats: the robust noise, or the RMSE where that is unknown."""
        return self.rmse if self.noise is None else self.noise

    def interval(self, points: Points, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """Return the confidence band of the curve: where a share ``level`` of the resampled laws put the loss."""
        low, high = np.quantile(self.resampled(points), tails(level), axis=0)
        return low, high

    def predictive_interval(self, points: Points, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """Return the interval for the loss of a new run by the law alone, without its frontier.

        Uncertain coefficients, noise, and the signed error of laws beyond their data; plans use it.
        """
        spread = self._known_spread()
        decades = _decades_beyond(self, spread, points)
        half = student_quantile(level, DEGREES) * np.sqrt(self.deviation(points) ** 2 + spread.variance(decades))
        centre = self(points) * np.exp(-spread.drift * decades)
        return centre * np.exp(-half), centre * np.exp(half)

    def difference_interval(self, first: Points, second: Points, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """Return the interval for the loss of one new run minus that of another, by the law alone.

        The coefficients err for both at once, and so largely cancel; noise and the error beyond the data do not.
        """
        spread = self._known_spread()
        centre, variance = np.zeros(first.shape), np.zeros(first.shape)
        for sign, points in ((1, first), (-1, second)):
            decades = _decades_beyond(self, spread, points)
            loss = self(points) * np.exp(-spread.drift * decades)
            centre, variance = centre + sign * loss, variance + loss**2 * spread.variance(decades)
        if self.resamples is not None:
            variance = variance + _deviation(self.resampled(first) - self.resampled(second)) ** 2
        half = student_quantile(level, DEGREES) * np.sqrt(variance)
        return np.asarray(centre - half), np.asarray(centre + half)

    def forecast(self, points: Points, level: float = 0.9) -> LawForecast:
        """Forecast the loss of a new run: the law, moved to the frontier that its runs show, with an interval.

        The nearer a run is to the compute-optimal size, the more the frontier counts. docs/prediction.md explains it.
        A law without a frontier has the centre and the width of ``predictive_interval``.
        """
        spread, law = self._known_spread(), self(points)
        decades = _decades_beyond(self, spread, points)
        if self.frontier is None:
            low, high = self.predictive_interval(points, level)
            return LawForecast(np.sqrt(low * high), low, high, level, law, None, 0.0 * low, decades)
        curve, cost = self.frontier, self.frontier.cost
        flops, above = cost.flops(points), above_optimum(self, points, cost)
        shift = curve.log_loss(flops)[0] - lowest_between(self, flops, curve.models, cost)
        weight = np.where(np.isfinite(shift), closeness(above), 0.0)
        shift = np.where(np.isfinite(shift), shift, 0.0)
        centre = np.log(law) + weight * shift
        near = spread.noise if curve.noise is None else curve.noise
        variance = (
            weight * near**2 + (1 - weight) * spread.noise**2
            + ((1 - weight / 2) * self.deviation(points)) ** 2  # the frontier rests on the law too, by half
            + (FORM_ERROR * decades**FORM_POWER) ** 2
            + (OFF_FRONTIER * above) ** 2
        )  # fmt: skip
        half = student_quantile(level, FORECAST_DEGREES) * np.sqrt(variance)
        ends = np.exp(centre - half), np.exp(centre + half)
        return LawForecast(np.exp(centre), *ends, level, law, law * np.exp(shift), weight, decades)

    def deviation(self, points: Points) -> FloatArray:
        """Return the standard deviation of ln loss over the resampled laws; zero without any."""
        if self.resamples is None:
            return np.zeros(points.shape)
        return _deviation(np.log(self.resampled(points)))

    def decades_outside(self, points: Points) -> FloatArray:
        """Return how far points lie outside the fitted range, in decades summed over its axes; zero inside.

        Ten times the size at given tokens is one decade, as it is in compute.
        """
        decades = np.zeros(points.shape)
        for factor in self._factors(points).values():
            decades = decades + np.minimum(np.log10(factor), MOST_DECADES)
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
        """Return g_eff = (N_eff - N_act) / N_loop: what looping adds, in units of the looped block."""
        with np.errstate(all="ignore"):
            gain = self.mapping.gain(self.coefficients, points.recurrence, active_ratio(self.mapping, points))
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
            asymptote = self.mapping.asymptote(self.coefficients, active_ratio(self.mapping, points))
            return 1.0 + np.where(points.loop > 0, asymptote * points.loop / points.active, 0.0)

    def extrapolated(self, points: Points) -> dict[str, BoolArray]:
        """Tell, axis by axis, where the points lie outside the range that the law was fitted on."""
        return {axis: self.fitted_range.outside(axis, value) for axis, value in self._along(points).items()}

    def _along(self, points: Points) -> dict[str, FloatArray]:
        """Return the points along each axis that the law has a range of."""
        at = dict(zip(AXES, (points.active, points.tokens, points.experts, points.recurrence), strict=True))
        return at | ({"epochs": points.tokens / points.unique} if self.outer.uses_unique else {})

    def _factors(self, points: Points) -> dict[str, FloatArray]:
        """Return how many times beyond the fitted range points lie along each axis; 1 inside."""
        return {axis: self.fitted_range.factor(axis, value) for axis, value in self._along(points).items()}

    def trust(self, points: Points) -> Trust:
        """Return how far the law's loss at one point can be trusted; of several points, at the farthest."""
        along, factors = self._along(points), self._factors(points)
        reasons = []
        for axis in AXES:
            if (factors[axis] > 1).any():
                worst = float(np.ravel(along[axis])[int(np.argmax(factors[axis]))])
                reasons.append(self.fitted_range.reason(axis, worst))
            elif None in getattr(self.fitted_range, axis):
                reasons.append(f"the law's source does not state the whole fitted range of {axis}")
        reasons += [f"the law is degenerate: {reason}" for reason in self.degenerate]
        level = max(self.trust_levels(points).ravel().tolist(), key=list(TRUST_LEVELS).index)
        return Trust(level, tuple(reasons), {axis: float(np.max(factors[axis])) for axis in AXES})

    def trust_levels(self, points: Points) -> NDArray[np.str_]:
        """Return the level of trust in the loss at each point: by its worst axis, lower for a poorly known law."""
        factors, worst = self._factors(points), np.ones(points.shape)
        for axis in AXES:
            worst = np.maximum(worst, factors[axis])
        stated = all(None not in getattr(self.fitted_range, axis) for axis in AXES)
        names = list(TRUST_LEVELS)
        least = names.index("far" if self.degenerate else "inside" if stated else "near")
        return np.array(names)[np.maximum(np.searchsorted(list(TRUST_LEVELS.values()), worst), least)]

    def at_one_expert(self) -> ScalingLaw:
        """Return the dense law that this one is at E = 1 (proposition moe-loop-equivalence)."""
        return self._reduced(*self.outer.at_one_expert(self.coefficients), *self.mapping.dense(self.coefficients))

    def at_one_pass(self) -> ScalingLaw:
        """Return the law without recurrence that this one is at R = 1."""
        base = {term.name: self.coefficients[term.name] for term in self.outer.coefficients}
        return self._reduced(self.outer, base, NoRecurrence(), {})

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
            "fitted": self.fitted,
            "degenerate": list(self.degenerate),
            "outer": self.outer.saved(),
            "mapping": self.mapping.name,
            "coefficients": dict(self.coefficients),
            "units": as_json(self.units),
            "counts": self.counts.value,
            "rmse": self.rmse,
            "noise": self.noise,
            "spread": as_json(self.spread),
            "frontier": as_json(self.frontier),
            "range": self.fitted_range.to_dict(),
        }
        if self.resamples is not None:
            data["resamples"] = self.resamples.tolist()
        if self.resampled_by:
            data["resampled_by"] = self.resampled_by
        if self.provenance is not None:
            data["provenance"] = as_json(self.provenance)
        return data

    @classmethod
    def from_dict(cls, data: object, where: str = "law", group: str | None = None) -> ScalingLaw:
        """Read a law from plain values; ``where`` names their origin in errors, ``group`` one law of several."""
        from loopscale.scaling.schema import read_law  # pydantic is slow to import

        values = read_law(data, where, group)
        try:
            return cls(**values)
        except InputError as error:
            raise error.within(where) from None

    def save(self, path: str | Path) -> None:
        """Write the law as JSON."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path, group: str | None = None) -> ScalingLaw:
        """Read a law that ``save`` wrote, or one written by hand in that form; ``group`` names one of several."""
        return cls.from_dict(read_json(path), str(path), group)

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
            text, units = self.outer.equation(self.coefficients), self.units
            return text if units == RAW else f"{text}; N and D in units of {units.parameters:g} and {units.tokens:g}"
        text = self.outer.equation(self.in_units(RAW).coefficients)
        return f"{text}, N = N_act + g(R) N_loop" if self.mapping.loops else text

    def latex(self) -> str:
        """Return the law for a paper: its equation and a table of its coefficients, in LaTeX."""
        from loopscale.scaling.latex import law_latex  # which few need

        return law_latex(self)

    def __str__(self) -> str:
        return f"{self.name}: {self.form}; {json.dumps(dict(self.coefficients))}"

    def __repr__(self) -> str:
        resampled = "" if self.resamples is None else f", {len(self.resamples)} resampled laws"
        rmse = "" if self.rmse is None else f", RMSE {self.rmse:.4g}"
        return f"<ScalingLaw {self.name!r}: {self.form}{rmse}{resampled}>"

    def _repr_html_(self) -> str:
        title = f"<p><b>{escape(self.name)}</b>: {escape(str(self.form))}. {escape(self.source)}</p>"
        return title + self.table()._repr_html_()

    def _known_spread(self) -> Spread:
        if self.spread is None:
            raise InputError(
                "this law has no predictive interval", where=self.name, remedy="fit it again with resampling"
            )
        return self.spread

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


def _decades_beyond(law: ScalingLaw, spread: Spread, points: Points) -> FloatArray:
    """Return how far points lie beyond the data: by compute, or by the axes of the fitted range if that is more."""
    return np.maximum(spread.decades(points), law.decades_outside(points))


def _deviation(values: FloatArray) -> FloatArray:
    """Return the standard deviation along the first axis that the central 90% of the values have."""
    low, high = np.quantile(values, tails(0.9), axis=0)
    return np.asarray((high - low) / (2 * NormalDist().inv_cdf(0.95)))


def _check_values(law: ScalingLaw, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        if not np.isfinite(value):
            raise InputError(f"{law.name}: coefficient {name!r} is {value}; it should be a finite number")
    for term in law.terms:
        if term.positive and values[term.name] <= 0:
            raise InputError(f"{law.name}: coefficient {term.name!r} is {values[term.name]}; it should be above zero")
    if problem := law.outer.problem(values):
        raise InputError(problem, where=law.name)


def _checked_resamples(law: ScalingLaw) -> FloatArray:
    try:
        array = np.asarray(law.resamples, dtype=np.float64)
    except ValueError:
        raise InputError("resamples should be rows of numbers, all of one length", where=law.name) from None
    if array.ndim != 2 or array.shape[1] != len(law.names) or not len(array) or not np.isfinite(array).all():
        raise InputError(
            f"{law.name}: resamples should be rows of {len(law.names)} finite numbers, in the order "
            + ", ".join(law.names)
        )
    for row in array:
        _check_values(law, dict(zip(law.names, row.tolist(), strict=True)))
    return array
