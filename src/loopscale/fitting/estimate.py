"""Fit a law to observations: choose the form, search, resample, and put the result together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, choice
from loopscale.fitting.checks import check_data
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.degeneracy import why_degenerate
from loopscale.fitting.lack_of_fit import lack_of_fit
from loopscale.fitting.ladder import LadderForm, climb
from loopscale.fitting.noise import robust_deviation
from loopscale.fitting.paper_recipe import paper_recipe
from loopscale.fitting.problem import NOTHING, Problem, build_problem
from loopscale.fitting.result import RESAMPLES, Fit
from loopscale.fitting.search import Recipe, SearchResult, search
from loopscale.fitting.starts import check_finite, random_starts, staged_start, start_from, typical
from loopscale.scaling import OuterLaw, RecurrenceMapping, outer_law
from loopscale.scaling import mapping as find_mapping

DELTA = 1e-3
STARTS = 8
LEAST_DELTA = 1e-6
"""An estimated delta stays above this, so that exact data keep a smooth objective."""
REPEATED, HARMFUL = 1.02, 16.0
"""Epochs from which the law is chosen with repeated data, and with a loss that rises again."""
FEW, FEWEST_FREE = 3, 5
"""With fewer rows than this for each coefficient, simpler forms are tried too; a law of five has none but ties."""


def fit(
    data: Any,
    *,
    outer: str | OuterLaw | None = None,
    mapping: str | RecurrenceMapping | None = None,
    fixed: Mapping[str, float] = NOTHING,
    bounds: Mapping[str, tuple[float, float]] = NOTHING,
    tie: Mapping[str, str] = NOTHING,
    delta: float | None = DELTA,
    recipe: Recipe | str = Recipe.DEFAULT,
    starts: int = STARTS,
    warm: Mapping[str, float] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Fit:
    """Fit a scaling law to observed losses: ``fit("runs.csv")`` is enough.

    ``data`` is a path (CSV, TSV, JSON lines, Parquet), a data frame of pandas, polars or pyarrow, the name of a public
    sweep, or ``Observations``; ``Observations.of("runs.csv", columns=..., keep=...)`` has the options of reading.
    A column ``weight``, or the noise of each loss in a column ``loss_std``, weights the rows. The form follows from
    the data: with experts and recurrence where they vary. Where the data do not determine that form, or it leaves a
    trend in the residuals, others are tried on held-out runs (``Fit.ladder`` has them). ``outer`` and ``mapping``
    choose one.

    Minimises the sum of Huber(``delta``) over the residuals of ln loss; a large delta means least squares, and None
    estimates it from the residuals. ``fixed`` holds coefficients at a value, ``bounds`` limits their range (both with
    counts in billions), ``tie={"alpha": "beta"}`` gives one the value of another. Coefficients with a
    prior, those of the general mapping's curve, are pulled towards it; ``recipe="no-prior"`` leaves that out.

    One start is staged (the base law on R = 1 first) or at ``warm``; the other ``starts`` - 1 are random over the whole
    box. ``recipe="paper"`` runs the paper's procedure instead, from one start.

    The law is refitted on ``resamples`` resampled data sets, whole runs drawn with replacement; 0 leaves that out.
    ``Fit.resample`` has the options of resampling.
    """
    observations = Observations.of(data)
    check_options(delta, starts, resamples)
    kind = choice(Recipe, recipe, "recipe")
    options: dict[str, Any] = {"delta": delta, "recipe": kind, "starts": starts, "seed": seed}
    form, recurrence = choose_form(observations, outer, mapping)
    if outer is not None or mapping is not None or fixed or bounds or tie or kind is not Recipe.DEFAULT:
        held: dict[str, Any] = {"fixed": fixed, "bounds": bounds, "tie": tie}
        result = _fit(observations, form, recurrence, warm=warm, **held, **options)
    else:
        result = _best_form(observations, form, recurrence, warm, options)
    return result.resample(resamples, seed=seed) if resamples else result


def _best_form(
    data: Observations,
    form: OuterLaw,
    recurrence: RecurrenceMapping,
    warm: Mapping[str, float] | None,
    options: dict[str, Any],
) -> Fit:
    """Fit the full form, and those of the ladder where the data do not determine it or it does not describe them."""
    try:
        full = _fit(data, form, recurrence, warm=warm, **options)
    except InputError:
        simpler = climb(data, LadderForm(form, recurrence), None, False, _fit, options)
        if simpler is None:
            raise
        return simpler
    few = len(data) < FEW * len(full.free) > FEW * FEWEST_FREE
    determined = not (full.degenerate or few)
    if determined and ((trend := lack_of_fit(full)) is None or not trend.matters):
        return full
    return climb(data, LadderForm(form, recurrence), full, determined, _fit, options) or full


def _fit(
    observations: Observations,
    form: OuterLaw,
    recurrence: RecurrenceMapping,
    *,
    delta: float | None,
    recipe: Recipe,
    starts: int,
    seed: int,
    warm: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] = NOTHING,
    bounds: Mapping[str, tuple[float, float]] = NOTHING,
    tie: Mapping[str, str] = NOTHING,
) -> Fit:
    """Fit one form."""
    check_data(observations, form, recurrence, fixed, tie)
    problem = build_problem(observations, form, recurrence, fixed, bounds, tie, prior=recipe is Recipe.DEFAULT)
    solution = solve(problem, recipe, starts=starts, seed=seed, warm=warm, delta=delta)
    held: dict[str, Any] = {
        "fixed": MappingProxyType(dict(fixed)),
        "bounds": MappingProxyType(dict(bounds)),
        "tie": MappingProxyType(dict(tie)),
    }
    return replace(fit_at(solution, observations, problem, recipe, seed, set(bounds)), **held)


def fit_at(
    solution: Solution, data: Observations, problem: Problem, recipe: Recipe, seed: int, bounded: set[str]
) -> Fit:
    """Return where a search ended as a fit without resamples; ``bounded`` names what the user bounded."""
    best, delta = solution
    return Fit(
        observations=data,
        outer=problem.outer,
        mapping=problem.mapping,
        coefficients=MappingProxyType(problem.coefficients(best.u)),
        objective=best.value,
        delta=delta,
        recipe=recipe,
        starts=len(best.optima.value_S),
        seed=seed,
        agreeing=int(best.agreeing.sum()),
        degenerate=why_degenerate(problem, best, delta, data, bounded),
    )


def choose_form(
    data: Observations, outer: str | OuterLaw | None = None, mapping: str | RecurrenceMapping | None = None
) -> tuple[OuterLaw, RecurrenceMapping]:
    """Return the form to fit: the one given, else the richest that the data can determine.

    Experts or passes that are the same in every row have no term: such a law answers for that value alone.
    """
    points = data.points
    if outer is None:
        outer = "joint-moe" if np.ptp(points.experts) > 0 else "chinchilla"
        epochs = float(np.max(points.tokens / points.unique))
        outer += "+overfit" if epochs > HARMFUL else "+repetition" if epochs > REPEATED else ""
    if mapping is None:
        sparse = points.total is not None and bool((points.m < 1).any())
        looped = "sparsity-conditional" if sparse else "bounded"
        mapping = looped if np.ptp(points.recurrence) > 0 else "none"
    return (
        outer_law(outer),
        find_mapping(mapping) if isinstance(mapping, str) else mapping,
    )


class Solution(NamedTuple):
    """Where a search ended, and the Huber delta of its objective."""

    best: SearchResult
    delta: float


def solve(
    problem: Problem,
    recipe: Recipe = Recipe.DEFAULT,
    *,
    starts: int = STARTS,
    seed: int = 0,
    warm: Mapping[str, float] | None = None,
    delta: float | None = DELTA,
) -> Solution:
    """Search for the best coefficients; where ``delta`` is None, once more with one estimated from the residuals."""
    check_finite(problem)
    if recipe is Recipe.PAPER:
        points = (problem.point(typical(problem)) if warm is None else start_from(problem, warm))[None, :]
        run = _by_paper
    else:
        first = staged_start(problem) if warm is None else start_from(problem, warm)
        points = np.concatenate([first[None, :], random_starts(problem, starts - 1, seed)])
        run = search
    best = run(problem, points, DELTA if delta is None else delta)
    if delta is not None:
        return Solution(best, delta)
    estimated = estimated_delta(problem.residuals(best.u))
    again = points if recipe is Recipe.PAPER else np.concatenate([best.u[None, :], points])
    return Solution(run(problem, again, estimated), estimated)


def _by_paper(problem: Problem, starts_SP: FloatArray, delta: float) -> SearchResult:
    optima = paper_recipe(problem, starts_SP[0], delta)
    return SearchResult(optima.u_SP[0], float(optima.value_S[0]), optima)


def estimated_delta(residuals: FloatArray) -> float:
    """Return Huber's 1.345 standard deviations, the deviation taken from the median absolute residual."""
    return max(1.345 * robust_deviation(residuals), LEAST_DELTA)


def check_options(delta: float | None, starts: int, resamples: int) -> None:
    """Refuse options of a fit that are out of range."""
    if delta is not None and not delta > 0:
        raise InputError(f"`delta` is {delta}", remedy="it should be above zero, or None to estimate it")
    if starts < 1:
        raise InputError(f"`starts` is {starts}", remedy="it should be 1 or more")
    if resamples < 0:
        raise InputError(f"`resamples` is {resamples}", remedy="it should be zero (none) or more")
