"""Fit a law to observations: choose the form, search, resample, and put the result together."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, choice
from loopscale.fitting.checks import check_data
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.degeneracy import why_degenerate
from loopscale.fitting.ladder import climb
from loopscale.fitting.noise import robust_deviation, run_noise
from loopscale.fitting.paper_recipe import paper_recipe
from loopscale.fitting.predictive import predictive_spread
from loopscale.fitting.problem import NO_TIES, Problem, build_problem
from loopscale.fitting.resample import resample
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
NOTHING: Mapping[str, float] = MappingProxyType({})
NO_BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType({})


def fit(
    data: Any,
    *,
    outer: str | OuterLaw | None = None,
    mapping: str | RecurrenceMapping | None = None,
    fixed: Mapping[str, float] = NOTHING,
    bounds: Mapping[str, tuple[float, float]] = NO_BOUNDS,
    tie: Mapping[str, str] = NO_TIES,
    delta: float | None = DELTA,
    recipe: Recipe | str = Recipe.DEFAULT,
    starts: int = STARTS,
    warm: Mapping[str, float] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Fit:
    """Fit a scaling law to observed losses: ``fit("runs.csv")`` is enough.

    ``data`` is a path (CSV, TSV, JSON lines, Parquet), a data frame of pandas, polars or pyarrow, the name of a public
    sweep, or :class:`Observations`; ``Observations.of("runs.csv", columns=..., keep=...)`` has the options of reading.
    A column ``weight``, or the noise of each loss in a column ``loss_std``, weights the rows. The form follows from
    the data: with experts and recurrence where they vary, and a simpler one where the data do not determine that
    (``Fit.ladder`` has those that were tried). ``outer`` and ``mapping`` choose another one.

    Minimises the sum of Huber(``delta``) over the residuals of ln loss; a large delta means least squares, and None
    estimates it from the residuals. ``fixed`` holds coefficients at a value, ``bounds`` limits their range (both with
    counts in billions), ``tie={"alpha": "beta"}`` gives one the value of another. Coefficients with a
    prior, those of the general mapping's curve, are pulled towards it; ``recipe="no-prior"`` leaves that out.

    One start is staged (the base law on R = 1 first) or at ``warm``; the other ``starts`` - 1 are random over the whole
    box. ``recipe="paper"`` runs the paper's procedure instead, from one start.

    The law is refitted on ``resamples`` resampled data sets, whole runs drawn with replacement; 0 leaves that out.
    :meth:`Fit.resample` has the options of resampling.
    """
    observations = Observations.of(data)
    _check_options(delta, starts, resamples)
    kind = choice(Recipe, recipe, "recipe")
    options: dict[str, Any] = {"delta": delta, "recipe": kind, "starts": starts, "seed": seed}
    form, recurrence = choose_form(observations, outer, mapping)
    if outer is not None or mapping is not None or fixed or bounds or tie or kind is not Recipe.DEFAULT:
        options |= {"fixed": fixed, "bounds": bounds, "tie": tie, "warm": warm}
        return _fit(observations, form, recurrence, resamples=resamples, **options)
    problem, result = None, None
    try:
        result = _fit(observations, form, recurrence, resamples=0, warm=warm, **options)
    except InputError as error:
        problem = error
    if result is None or result.degenerate or len(observations) < FEW * len(result.free) > FEW * FEWEST_FREE:
        simpler = climb(observations, form, recurrence, fit, options)
        if simpler is None and problem is not None:
            raise problem
        result = simpler or result
    assert result is not None
    return result.resample(resamples, seed=seed, workers=1) if resamples else result


def _fit(
    observations: Observations,
    form: OuterLaw,
    recurrence: RecurrenceMapping,
    *,
    resamples: int,
    delta: float | None,
    recipe: Recipe,
    starts: int,
    seed: int,
    warm: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] = NOTHING,
    bounds: Mapping[str, tuple[float, float]] = NO_BOUNDS,
    tie: Mapping[str, str] = NO_TIES,
) -> Fit:
    """Fit one form."""
    kind = recipe
    check_data(observations, form, recurrence, fixed, tie)
    problem = build_problem(observations, form, recurrence, fixed, bounds, tie, prior=kind is Recipe.DEFAULT)
    check_finite(problem)
    if kind is Recipe.PAPER:
        best, used_delta = _by_paper(problem, warm, delta)
    else:
        best, used_delta = _by_default(problem, starts, seed, warm, delta)
    coefficients = problem.coefficients(best.u)
    u = problem.point(coefficients)
    drawn = spread = None
    if resamples:
        noise = run_noise(problem.residuals(u), observations.run, len(problem.free))
        drawn = resample(problem, u, used_delta, observations.run, noise, count=resamples, seed=seed)
        spread = predictive_spread(observations, problem, u, used_delta, seed)
    result = Fit(
        observations=observations,
        outer=form,
        mapping=recurrence,
        coefficients=MappingProxyType(coefficients),
        objective=best.value,
        delta=used_delta,
        recipe=kind,
        starts=len(best.optima.value_S),
        seed=seed,
        agreeing=int(best.agreeing.sum()),
        degenerate=why_degenerate(problem, best, used_delta, observations, set(bounds)),
        fixed=MappingProxyType(dict(fixed)),
        bounds=MappingProxyType(dict(bounds)),
        tie=MappingProxyType(dict(tie)),
        resamples=None if drawn is None else drawn.rows,
        scheme=None if drawn is None else drawn.scheme,
        spread=spread,
    )
    return result.with_frontier() if resamples else result


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


def _by_default(
    problem: Problem, starts: int, seed: int, warm: Mapping[str, float] | None, delta: float | None
) -> tuple[SearchResult, float]:
    first = staged_start(problem) if warm is None else start_from(problem, warm)
    points = np.concatenate([first[None, :], random_starts(problem, starts - 1, seed)])
    best = search(problem, points, DELTA if delta is None else delta)
    if delta is not None:
        return best, delta
    estimated = estimated_delta(problem.residuals(best.u))
    return search(problem, np.concatenate([best.u[None, :], points]), estimated), estimated


def _by_paper(problem: Problem, warm: Mapping[str, float] | None, delta: float | None) -> tuple[SearchResult, float]:
    first = problem.point(typical(problem)) if warm is None else start_from(problem, warm)
    optima = paper_recipe(problem, first, DELTA if delta is None else delta)
    if delta is None:
        delta = estimated_delta(problem.residuals(optima.u_SP[0]))
        optima = paper_recipe(problem, first, delta)
    return SearchResult(optima.u_SP[0], float(optima.value_S[0]), optima), delta


def estimated_delta(residuals: FloatArray) -> float:
    """Return Huber's 1.345 standard deviations, the deviation taken from the median absolute residual."""
    return max(1.345 * robust_deviation(residuals), LEAST_DELTA)


def _check_options(delta: float | None, starts: int, resamples: int) -> None:
    if delta is not None and not delta > 0:
        raise InputError(f"`delta` is {delta}", remedy="it should be above zero, or None to estimate it")
    if starts < 1:
        raise InputError(f"`starts` is {starts}", remedy="it should be 1 or more")
    if resamples < 0:
        raise InputError(f"`resamples` is {resamples}", remedy="it should be zero (none) or more")
