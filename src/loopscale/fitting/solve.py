"""The fit of one form: its search, with the procedure that was asked for, and the result put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.fitting.checks import check_data
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.degeneracy import why_degenerate
from loopscale.fitting.descent import Optima
from loopscale.fitting.noise import robust_deviation
from loopscale.fitting.paper_recipe import paper_recipe
from loopscale.fitting.problem import NOTHING, Problem, build_problem
from loopscale.fitting.result import Fit
from loopscale.fitting.search import Recipe, search
from loopscale.fitting.starts import check_finite, random_starts, staged_start, start_from
from loopscale.scaling import OuterLaw, RecurrenceMapping

DELTA = 1e-3
STARTS = 8
LEAST_DELTA = 1e-6
"""An estimated delta stays above this, so that exact data keep a smooth objective."""


@dataclass(frozen=True)
class Procedure:
    """How a form is fitted, whichever form it is."""

    delta: float | None = DELTA
    """Where the Huber loss of ln loss becomes linear; None estimates it from the residuals."""
    recipe: Recipe = Recipe.DEFAULT
    starts: int = STARTS
    seed: int = 0
    """Of the random starts."""

    def __post_init__(self) -> None:
        if self.delta is not None and not self.delta > 0:
            raise InputError(f"`delta` is {self.delta}", remedy="it should be above zero, or None to estimate it")
        if self.starts < 1:
            raise InputError(f"`starts` is {self.starts}", remedy="it should be 1 or more")


class Solution(NamedTuple):
    """Where a search ended, and the Huber delta of its objective."""

    optima: Optima
    delta: float


def fit_form(
    data: Observations,
    outer: OuterLaw,
    mapping: RecurrenceMapping,
    procedure: Procedure,
    *,
    warm: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] = NOTHING,
    bounds: Mapping[str, tuple[float, float]] = NOTHING,
    tie: Mapping[str, str] = NOTHING,
) -> Fit:
    """Fit one form, without resamples."""
    check_data(data, outer, mapping, fixed, tie)
    prior = procedure.recipe is Recipe.DEFAULT
    problem = build_problem(data, outer, mapping, fixed, bounds, tie, prior=prior)
    result = fit_at(solve(problem, procedure, warm), data, problem, procedure, bounds)
    return replace(
        result,
        fixed=MappingProxyType(dict(fixed)),
        bounds=MappingProxyType(dict(bounds)),
        tie=MappingProxyType(dict(tie)),
    )


def solve(problem: Problem, procedure: Procedure, warm: Mapping[str, float] | None = None) -> Solution:
    """Search for the best coefficients, from ``warm`` where it is given.

    Without a delta, search once more with the one that the residuals show.
    """
    check_finite(problem)
    if procedure.recipe is Recipe.PAPER:
        points, find = start_from(problem, warm or {})[None, :], paper_recipe
    else:
        first = staged_start(problem) if warm is None else start_from(problem, warm)
        points = np.concatenate([first[None, :], random_starts(problem, procedure.starts - 1, procedure.seed)])
        find = search
    optima = find(problem, points, DELTA if procedure.delta is None else procedure.delta)
    if procedure.delta is not None:
        return Solution(optima, procedure.delta)
    delta = estimated_delta(problem.residuals(optima.u))
    again = points if procedure.recipe is Recipe.PAPER else np.concatenate([optima.u[None, :], points])
    return Solution(find(problem, again, delta), delta)


def fit_at(
    solution: Solution, data: Observations, problem: Problem, procedure: Procedure, bounded: Iterable[str]
) -> Fit:
    """Return where a search ended as a fit without resamples; ``bounded`` names what the user bounded."""
    optima, delta = solution
    return Fit(
        observations=data,
        outer=problem.outer,
        mapping=problem.mapping,
        coefficients=MappingProxyType(problem.coefficients(optima.u)),
        objective=optima.value,
        delta=delta,
        recipe=procedure.recipe,
        starts=len(optima.value_S),
        seed=procedure.seed,
        agreeing=int(optima.agreeing.sum()),
        degenerate=why_degenerate(problem, optima, delta, data, set(bounded)),
    )


def estimated_delta(residuals: FloatArray) -> float:
    """Return Huber's 1.345 standard deviations, the deviation taken from the median absolute residual."""
    return max(1.345 * robust_deviation(residuals), LEAST_DELTA)
