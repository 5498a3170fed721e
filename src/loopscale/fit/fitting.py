"""Fit a law to observations."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np

from loopscale.arrays import FloatArray
from loopscale.errors import InputError, nearest, shown
from loopscale.fit.data.read import Observations
from loopscale.fit.degeneracy import coefficients_at_bound, robust_deviation, why_degenerate
from loopscale.fit.problem import Problem, check_data, pose
from loopscale.fit.solver import Ends, Found, huber, random_starts, search, staged_start, start_from, typical
from loopscale.laws import BILLIONS, FittedRange, ScalingLaw, outer_law
from loopscale.laws import mapping as find_mapping


class Recipe(Enum):
    """How the optimum is looked for; the objective is the same."""

    DEFAULT = "default"
    """Exact gradients, bounds, many starts."""
    PAPER = "paper"
    """The paper's own two stages with finite differences."""


class Scheme(Enum):
    """What a resampled data set is made of."""

    RUNS = "runs"
    """As many runs as there are, with replacement: rows of one run stay together."""
    OBSERVATIONS = "observations"
    """As many rows as there are, with replacement."""
    PAPER = "paper"
    """90% of the rows without replacement, as the paper does: intervals about three times too narrow."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A law, the data it was fitted to, and what the search found."""

    law: ScalingLaw
    observations: Observations
    objective: float
    """Sum of Huber(delta) over the residuals of ln loss."""
    delta: float
    recipe: Recipe
    starts: int
    agreeing: int
    """Starts that ended within 0.1% of the best objective."""
    free: tuple[str, ...]
    """Coefficients that were varied."""
    at_bound: tuple[str, ...]
    degenerate: tuple[str, ...]
    """Why the coefficients mean nothing, if so; empty where the fit is sound."""
    fixed: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The user's own bounds; other coefficients keep those of their form."""
    scheme: Scheme | None = None
    """How ``law.resamples`` were drawn, once they are."""

    @property
    def residuals(self) -> FloatArray:
        """Predicted minus observed ln loss, row by row."""
        predicted = self.law(self.observations.points)
        return np.asarray(np.log(predicted) - np.log(self.observations.loss))

    def __str__(self) -> str:
        from loopscale.fit.summary import summary  # which reads fits

        return summary(self)


def default_outer(observations: Observations) -> str:
    """Return the outer law that the data call for: with experts where any run has them."""
    return "joint-moe" if np.any(observations.points.experts > 1) else "chinchilla"


def default_mapping(observations: Observations) -> str:
    """Return the richest recurrence mapping that the data can tell."""
    points = observations.points
    if not np.any(points.recurrence > 1):
        return "none"
    sparse = points.total is not None and bool((points.m < 1).any())
    return "sparsity-conditional" if sparse else "bounded"


def default_form(data: Observations, outer: str | None, mapping: str | None) -> tuple[str, str]:
    """Return the form to fit: what is given, and what the data call for where nothing is."""
    return outer or default_outer(data), mapping or default_mapping(data)


def paper_recipe(problem: Problem, start: FloatArray, delta: float) -> Ends:
    """Return where the paper's procedure ends from one start, given in search coordinates."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # curve_fit warns of a covariance that is not used
        plain = _plain(problem)
        x = problem.vectors(start)[problem.free]
        once, base = problem.R == 1, problem.base
        if problem.mapping.loops and base.any() and once.sum() > base.sum():
            x[base] = _stage(plain.rows(once).holding(~base, x), x[base], delta)
        x = _stage(plain, x, delta)
        u = problem.point(dict(zip(problem.free_names, x.tolist(), strict=True)))
        return Ends(u[None, :], huber(problem.residuals(u), delta)[None])


def _stage(problem: Problem, x: FloatArray, delta: float) -> FloatArray:
    from scipy.optimize import Bounds, curve_fit, minimize  # half a second, which only this recipe should cost

    box, loss, unit = (problem.lower, problem.upper), np.exp(problem.log_loss), 1.0

    def predicted(_: FloatArray, *values: float) -> FloatArray:
        return np.asarray(np.exp(problem.residuals(np.array(values))) * loss)

    def objective(values: FloatArray) -> float:
        return float(huber(problem.residuals(values), delta)) / unit

    # Where it does not converge or meets something that is not a number, the second step goes on from the start.
    with suppress(RuntimeError, ValueError):
        x = curve_fit(predicted, problem.log_loss, loss, p0=x, bounds=box)[0]
    unit = float(huber(problem.residuals(x), delta)) or 1.0
    # Enough trials for the tolerance, not a count, to end the descent.
    options: Any = {"maxiter": 5_000, "maxfun": 200_000}
    return np.asarray(minimize(objective, x, method="L-BFGS-B", bounds=Bounds(*box), options=options).x)


def _plain(problem: Problem) -> Problem:
    """Return the problem in the coefficients themselves, none in logarithm."""
    lower, upper = (problem.vectors(u)[problem.free] for u in (problem.lower, problem.upper))
    return replace(problem, logarithmic=np.zeros(len(problem.free), dtype=bool), lower=lower, upper=upper)


DELTA = 1e-3
STARTS = 8
LEAST_DELTA = 1e-6
"""An estimated delta stays above this, so that exact data keep a smooth objective."""

NOTHING: Mapping[str, float] = MappingProxyType({})
NO_BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType({})


def fit(
    observations: Observations,
    *,
    outer: str = "joint-moe",
    mapping: str = "sparsity-conditional",
    fixed: Mapping[str, float] = NOTHING,
    bounds: Mapping[str, tuple[float, float]] = NO_BOUNDS,
    delta: float | None = DELTA,
    recipe: Recipe | str = Recipe.DEFAULT,
    starts: int = STARTS,
    seed: int = 0,
    warm: Mapping[str, float] | None = None,
    name: str = "fitted",
) -> Fit:
    """Fit the coefficients of a form to observed losses.

    Minimises the sum of Huber(``delta``) over the residuals of ln loss; a large delta means least squares, and None
    has it estimated from the residuals. ``fixed`` holds coefficients and ``bounds`` narrows or widens their range, both
    with counts in billions. One start is staged (base law on R = 1 first) or at ``warm``, the other ``starts`` - 1 are
    random over the whole box. ``recipe="paper"`` runs the paper's procedure instead, from one start.
    """
    form, gain = outer_law(outer), find_mapping(mapping)
    _check_options(delta, starts)
    check_data(observations, form, gain, fixed)
    problem = pose(observations, form, gain, fixed, bounds)
    if _recipe(recipe) is Recipe.PAPER:
        found, huber_delta = _by_paper(problem, warm, delta)
    else:
        found, huber_delta = _by_default(problem, starts, seed, warm, delta)
    return _result(observations, problem, found, huber_delta, _recipe(recipe), fixed, bounds, name)


def _by_default(
    problem: Problem, starts: int, seed: int, warm: Mapping[str, float] | None, delta: float | None
) -> tuple[Found, float]:
    first = staged_start(problem) if warm is None else start_from(problem, warm)
    points = np.concatenate([first[None, :], random_starts(problem, starts - 1, seed)])
    found = search(problem, points, DELTA if delta is None else delta)
    if delta is not None:
        return found, delta
    estimated = estimated_delta(problem.residuals(found.u))
    return search(problem, np.concatenate([found.u[None, :], points]), estimated), estimated


def _by_paper(problem: Problem, warm: Mapping[str, float] | None, delta: float | None) -> tuple[Found, float]:
    first = problem.point(typical(problem)) if warm is None else start_from(problem, warm)
    ends = paper_recipe(problem, first, DELTA if delta is None else delta)
    if delta is None:
        delta = estimated_delta(problem.residuals(ends.u_SP[0]))
        ends = paper_recipe(problem, first, delta)
    return Found(ends.u_SP[0], float(ends.value_S[0]), ends), delta


def estimated_delta(residuals: FloatArray) -> float:
    """Return Huber's 1.345 standard deviations, the deviation taken from the median absolute residual."""
    return max(1.345 * robust_deviation(residuals), LEAST_DELTA)


def _result(
    data: Observations,
    problem: Problem,
    found: Found,
    delta: float,
    recipe: Recipe,
    fixed: Mapping[str, float],
    bounds: Mapping[str, tuple[float, float]],
    name: str,
) -> Fit:
    at_bound = coefficients_at_bound(problem, found.u)
    predicted = np.exp(problem.residuals(found.u)) * data.loss
    law = ScalingLaw(
        problem.outer,
        problem.mapping,
        problem.coefficients(found.u),
        BILLIONS,
        data.counts,
        name=name,
        source=f"fitted to {data.source}",
        rmse=float(np.sqrt(np.mean((predicted - data.loss) ** 2))),
        fitted_range=fitted_range(data),
    )
    return Fit(
        law=law,
        observations=data,
        objective=found.value,
        delta=delta,
        recipe=recipe,
        starts=len(found.ends.value_S),
        agreeing=int(found.agreeing.sum()),
        free=problem.free_names,
        at_bound=at_bound,
        degenerate=why_degenerate(problem, found, delta, data, set(bounds)),
        fixed=MappingProxyType(dict(fixed)),
        bounds=MappingProxyType(dict(bounds)),
    )


def fitted_range(data: Observations) -> FittedRange:
    """Return the span of the data along each axis."""
    p = data.points
    spans = [(float(each.min()), float(each.max())) for each in (p.active, p.tokens, p.experts, p.recurrence)]
    return FittedRange(*spans)


def _check_options(delta: float | None, starts: int) -> None:
    if delta is not None and not delta > 0:
        raise InputError(f"delta is {delta}; it should be above zero, or None to estimate it")
    if starts < 1:
        raise InputError(f"starts is {starts}; it should be 1 or more")


def _recipe(recipe: Recipe | str) -> Recipe:
    known = [each.value for each in Recipe]
    if isinstance(recipe, str) and recipe not in known:
        raise InputError(f"recipe {shown(recipe)} is not known{nearest(recipe, known)}; choose from {', '.join(known)}")
    return Recipe(recipe)
