"""Fit a law to observations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from loopscale.arrays import FloatArray
from loopscale.errors import InputError, nearest, shown
from loopscale.fit.checks import check_data
from loopscale.fit.degeneracy import coefficients_at_bound, robust_deviation, why_degenerate
from loopscale.fit.observations import Observations
from loopscale.fit.problem import Problem, pose
from loopscale.fit.recipes import paper_recipe
from loopscale.fit.result import Fit, Recipe
from loopscale.fit.search import Found, search
from loopscale.fit.starts import random_starts, staged_start, start_from, typical
from loopscale.laws import BILLIONS, FittedRange, ScalingLaw, outer_law
from loopscale.laws import mapping as find_mapping

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
