"""What a fit minimises: residuals of ln loss and their exact derivatives, in coordinates that suit a search.

Coefficients whose range is above zero are searched in logarithm, the others as they are; counts are in billions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray, IntArray, Values
from loopscale.core.errors import InputError, nearest, shown
from loopscale.fitting.data.observations import Observations
from loopscale.scaling import BILLIONS, Coefficient, Form, Inputs, OuterLaw, RecurrenceMapping, Role, Term, inputs

NOTHING: Mapping[str, Any] = MappingProxyType({})
"""No coefficient held, bounded or tied."""
APART = 1.001
"""E_max stays above E_start by this factor: where they meet, experts have no effect and Ê divides by zero."""
SMALL = 1e-3
"""In billions. Runs below it have terms A N^-alpha and B D^-beta with smaller A and B than any published law."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Data, form and box. A point of the box, ``u``, holds the free coefficients in search coordinates."""

    form: Form
    names: tuple[str, ...]
    """All coefficients, fixed ones too, in the law's order."""
    values: FloatArray
    """A value for each of them; the fixed ones keep theirs."""
    free: IntArray
    """Which of them vary."""
    logarithmic: BoolArray
    """Which of the free ones are searched in logarithm."""
    lower: FloatArray
    upper: FloatArray
    x: Inputs
    """One row for each observation."""
    log_loss: FloatArray
    """Of each row, or a row of them for each descent."""
    weight: FloatArray | None = None
    """How often each row counts, or a row of that for each descent; None where each counts once."""
    tied: tuple[tuple[int, int], ...] = ()
    """Pairs of coefficients, by position: the first takes the value of the second."""
    centre: FloatArray | None = None
    """Where the priors have their centre, for each free coefficient; None where the fit has no prior."""
    pull: FloatArray | None = None
    """How strongly the priors pull each free coefficient there; zero for one without."""

    def __len__(self) -> int:
        return int(self.log_loss.shape[-1])

    @property
    def outer(self) -> OuterLaw:
        """The form's outer law."""
        return self.form.outer

    @property
    def mapping(self) -> RecurrenceMapping:
        """The form's recurrence mapping."""
        return self.form.mapping

    @property
    def N(self) -> FloatArray:
        """N_act in billions."""
        return np.asarray(self.x.N)

    @property
    def D(self) -> FloatArray:
        """Tokens in billions."""
        return np.asarray(self.x.D)

    @property
    def E(self) -> FloatArray:
        """Experts."""
        return np.asarray(self.x.E)

    @property
    def R(self) -> FloatArray:
        """Recurrence."""
        return np.asarray(self.x.R)

    @cached_property
    def free_names(self) -> tuple[str, ...]:
        """The free coefficients, in the order of ``u``."""
        return tuple(self.names[k] for k in self.free)

    @cached_property
    def width(self) -> FloatArray:
        """The box's width along each free coefficient."""
        return self.upper - self.lower

    @cached_property
    def base(self) -> BoolArray:
        """Which of the free coefficients belong to the outer law, not to the recurrence."""
        names = {term.name for term in self.outer.coefficients}
        return np.array([name in names for name in self.free_names], dtype=bool)

    @cached_property
    def terms(self) -> dict[str, Coefficient]:
        """The free coefficients by name, each with its own description."""
        return {term.name: term for term in self.form.coefficients if term.name in self.free_names}

    def vectors(self, u: FloatArray) -> FloatArray:
        """Return all coefficients at ``u`` (or at several points, stacked), in the law's order."""
        values = np.empty((*u.shape[:-1], len(self.names)))
        values[...] = self.values
        values[..., self.free] = np.where(self.logarithmic, np.exp(np.where(self.logarithmic, u, 0.0)), u)
        for follower, leader in self.tied:
            values[..., follower] = values[..., leader]
        return values

    def coefficients(self, u: FloatArray) -> dict[str, float]:
        """Return all coefficients at ``u``, by name."""
        return dict(zip(self.names, self.vectors(u).tolist(), strict=True))

    def point(self, coefficients: Mapping[str, float]) -> FloatArray:
        """Return the point of the box nearest to ``coefficients``."""
        values = np.array([coefficients[name] for name in self.free_names], dtype=float)
        with np.errstate(divide="ignore", invalid="ignore"):
            u = np.where(self.logarithmic, np.log(np.maximum(values, 0.0)), values)
        return np.clip(u, self.lower, self.upper)

    def residuals(self, u: FloatArray) -> FloatArray:
        """Return predicted minus observed ln loss, at one point or at several."""
        return np.asarray(np.log(self.form.loss(self._columns(u), self.x)) - self.log_loss)

    def linearised(self, u: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the residuals and their derivatives (one row for each free coefficient), at one point or several."""
        c = self._columns(u)
        loss, by = self.form.gradient(c, self.x)
        inverse = 1.0 / loss
        for follower, leader in self.tied:
            by[self.names[leader]] = by[self.names[leader]] + by[self.names[follower]]
        jacobian = np.empty((*u.shape[:-1], len(self.free), len(self)))
        for k, (name, logarithmic) in enumerate(zip(self.free_names, self.logarithmic, strict=True)):
            np.multiply(by[name], inverse * c[name] if logarithmic else inverse, out=jacobian[..., k, :])
        return np.log(loss) - self.log_loss, jacobian

    def penalty(self, u: FloatArray) -> FloatArray:
        """Return what the priors add to the objective, at one point or at several."""
        if self.centre is None or self.pull is None:
            return np.zeros(u.shape[:-1])
        return np.asarray(0.5 * ((self.pull * (u - self.centre)) ** 2).sum(axis=-1))

    def at_bound(self, u: FloatArray) -> tuple[str, ...]:
        """Return the free coefficients that are on a bound at ``u``."""
        near = 1e-6 * self.width
        on = (u <= self.lower + near) | (u >= self.upper - near)
        return tuple(name for name, yes in zip(self.free_names, on, strict=True) if yes)

    def rows(self, chosen: BoolArray | IntArray) -> Problem:
        """Return the same problem on some of the rows."""
        weight = None if self.weight is None else self.weight[..., chosen]
        return replace(self, x=self.x.rows(chosen), log_loss=self.log_loss[..., chosen], weight=weight)

    def part(self, descents: BoolArray | IntArray) -> Problem:
        """Return the problem of some of the descents, where each has its own weights or losses."""
        own = {"weight": self.weight, "log_loss": self.log_loss}
        parts: dict[str, Any] = {
            name: rows[descents] for name, rows in own.items() if rows is not None and rows.ndim > 1
        }
        return replace(self, **parts) if parts else self

    def with_fixed(self, held: BoolArray, u: FloatArray) -> Problem:
        """Return the problem with some of its free coefficients held at ``u``."""
        keep = ~held
        return replace(
            self, values=self.vectors(u), free=self.free[keep], logarithmic=self.logarithmic[keep],
            lower=self.lower[keep], upper=self.upper[keep],
            centre=None if self.centre is None else self.centre[keep],
            pull=None if self.pull is None else self.pull[keep],
        )  # fmt: skip

    def _columns(self, u: FloatArray) -> Values:
        """Return the coefficients by name, shaped to broadcast against the rows."""
        values = self.vectors(u)
        return {name: values[..., k : k + 1] for k, name in enumerate(self.names)}


def build_problem(
    data: Observations,
    outer: OuterLaw,
    mapping: RecurrenceMapping,
    fixed: Mapping[str, float],
    bounds: Mapping[str, tuple[float, float]],
    tie: Mapping[str, str] = NOTHING,
    prior: bool = False,
) -> Problem:
    """Return the problem of fitting this form to these observations, with the priors of its coefficients or without."""
    form = Form(outer, mapping)
    terms, names = form.coefficients, form.names
    _check_names(names, fixed, "fixed")
    _check_names(names, bounds, "bounds")
    _check_fixed(terms, fixed, bounds)
    _check_ties(names, tie, fixed, bounds)
    bounds = {**_for_small_runs(data, terms), **bounds}
    box = {term.name: _limits(term, bounds) for term in terms if term.name not in fixed and term.name not in tie}
    _keep_apart(box, fixed)
    values = np.array([fixed.get(name, 0.0 if name in tie else np.nan) for name in names], dtype=float)
    limits = np.array(list(box.values()), dtype=float).reshape(-1, 2)
    logarithmic = limits[:, 0] > 0
    limits[logarithmic] = np.log(limits[logarithmic])
    problem = Problem(
        form, names, values, np.flatnonzero(np.isnan(values)), logarithmic, limits[:, 0], limits[:, 1],
        x=inputs(form, data.points, BILLIONS),
        log_loss=np.log(data.loss),
        weight=data.weight,
        tied=tuple((names.index(follower), names.index(leader)) for follower, leader in tie.items()),
    )  # fmt: skip
    return with_prior(problem) if prior else problem


PRIOR_COST = 1.5e-3
"""A coefficient one width from its prior costs as much as this error in one ln loss, about the noise of one run."""


def with_prior(problem: Problem) -> Problem:
    """Return the problem with the priors that its coefficients have; the same one where none has any."""
    priors = [problem.terms[name].prior for name in problem.free_names]
    if not any(priors):
        return problem
    centre = np.array([0.0 if prior is None else prior.centre for prior in priors])
    pull = np.array([0.0 if prior is None else PRIOR_COST / prior.width for prior in priors])
    searched = np.where(problem.logarithmic & (pull > 0), np.log(np.where(centre > 0, centre, 1.0)), centre)
    return replace(problem, centre=searched, pull=pull)


def _check_names(names: tuple[str, ...], stated: Iterable[str], field: str) -> None:
    for name in stated:
        if name not in names:
            raise InputError(
                f"coefficient {shown(name)} is unknown{nearest(name, names)}",
                field=field, remedy=f"the form has {', '.join(names)}",
            )  # fmt: skip


def _check_fixed(
    terms: tuple[Coefficient, ...], fixed: Mapping[str, float], bounds: Mapping[str, tuple[float, float]]
) -> None:
    for name, value in fixed.items():
        if not np.isfinite(value):
            raise InputError(f"{name} is {value}", field="fixed", remedy="it should be a finite number")
        if name in bounds:
            raise InputError(f"`fixed` and `bounds` both name {name}", remedy="hold it or bound it")
    if {"E_start", "E_max"} <= set(fixed) and not 0 < fixed["E_start"] < fixed["E_max"]:
        raise InputError(
            f"E_start is {fixed['E_start']:g} and E_max {fixed['E_max']:g}",
            field="fixed", remedy="E_start is the smaller",
        )  # fmt: skip
    for term in terms:  # papers print exponents with the other sign, which would let the loss rise with size
        value = fixed.get(term.name, 0.0)
        if term.published_sign < 0 and value > 0 >= term.upper:
            raise InputError(
                f"{term.name} is {value:g}; exponents are negative here (N^{term.name}, not 1 / N^{term.name})",
                field="fixed", remedy=f"write {-value:g}",
            )  # fmt: skip


def _check_ties(
    names: tuple[str, ...],
    tie: Mapping[str, str],
    fixed: Mapping[str, float],
    bounds: Mapping[str, tuple[float, float]],
) -> None:
    _check_names(names, (*tie, *tie.values()), "tie")
    for follower, leader in tie.items():
        if follower == leader or leader in tie:
            raise InputError(
                f"{follower}={leader} refers back to a tied coefficient", field="tie", remedy="tie it to a free one"
            )
        if follower in fixed or follower in bounds:
            raise InputError(
                f"{follower} is also fixed or bounded", field="tie", remedy=f"fix or bound {leader} instead"
            )


def _for_small_runs(data: Observations, terms: tuple[Coefficient, ...]) -> dict[str, tuple[float, float]]:
    """Return wider bounds of A and B for runs of less than a million parameters or tokens; others keep theirs."""
    least = {
        Term.SIZE: float(data.points.active.min()) / BILLIONS.parameters,
        Term.DATA: float(data.points.tokens.min()) / BILLIONS.tokens,
    }
    return {
        term.name: (term.lower * (least[term.term] / SMALL) ** 1.5, term.upper)
        for term in terms
        if term.role is Role.SCALE and least.get(term.term, SMALL) < SMALL
    }


def _limits(term: Coefficient, bounds: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    low, high = bounds.get(term.name, (term.lower, term.upper))
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise InputError(
            f"{term.name} has {shown((low, high))}",
            field="bounds",
            remedy=f"give a finite lower and a larger upper bound, or hold it with `fixed` {term.name}=VALUE",
        )
    if term.positive and low <= 0:
        raise InputError(f"{term.name} has {shown((low, high))}", field="bounds", remedy="it should stay above zero")
    return float(low), float(high)


def _keep_apart(box: dict[str, tuple[float, float]], fixed: Mapping[str, float]) -> None:
    """Shrink the box where E_start could meet E_max."""
    if "E_start" in box:
        low, high = box["E_start"]
        ceiling = fixed.get("E_max", box.get("E_max", (np.inf, np.inf))[0]) / APART
        if low >= ceiling:
            raise InputError(
                f"E_start from {low:g} leaves no room below E_max",
                field="bounds", remedy="E_start is the smaller of the two",
            )  # fmt: skip
        box["E_start"] = (low, min(high, ceiling))
    elif "E_max" in box and "E_start" in fixed:
        low, high = box["E_max"]
        floor = fixed["E_start"] * APART
        if high <= floor:
            raise InputError(
                f"E_max up to {high:g} leaves no room above E_start = {fixed['E_start']:g}", field="bounds"
            )
        box["E_max"] = (max(low, floor), high)
