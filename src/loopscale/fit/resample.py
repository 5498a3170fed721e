"""How far the data pin the law down: refits on resampled data, and the intervals they give."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from loopscale.arrays import FloatArray
from loopscale.errors import InputError, nearest, shown
from loopscale.fit.data.read import Observations
from loopscale.fit.fitting import Fit, Scheme
from loopscale.fit.problem import Problem, pose
from loopscale.fit.solver import side_by_side
from loopscale.laws import Points

PAPER_SHARE = 0.9
BATCH = 20
"""Refits handed out together."""
PAYS = 5.0
"""Seconds of work left from which a pool of processes pays for its start."""

Progress = Callable[[int, int], None]


def resample(
    fit: Fit,
    *,
    scheme: Scheme | str = Scheme.RUNS,
    count: int = 100,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Return the fit with its law refitted on ``count`` resampled data sets, as ``law.resamples``.

    Runs are drawn with replacement by default, because the points along one run are not independent. Refits start at
    the full fit: on simulated and public sweeps that was never above a full search of the same resample. ``workers``
    processes share them; None means several only where the work takes long. ``progress`` is called with the number
    done and the total.
    """
    kind = _scheme(scheme)
    if count < 2:
        raise InputError(f"count is {count}; resampling needs 2 or more refits")
    problem = problem_of(fit)
    weights = _weights(fit.observations, problem, kind, count, np.random.default_rng(seed))
    start, rows = problem.point(fit.law.coefficients), list[FloatArray]()
    for refitted in _refits(problem, start, fit.delta, np.array_split(weights, -(-count // BATCH)), workers):
        rows.append(refitted)
        if progress is not None:
            progress(sum(map(len, rows)), count)
    return replace(fit, law=replace(fit.law, resamples=np.concatenate(rows)), scheme=kind)


def coefficient_intervals(fit: Fit, level: float = 0.9) -> dict[str, tuple[float, float]]:
    """Return each coefficient's percentile interval over the resampled laws; a fixed one has no width."""
    low, high = np.quantile(_resamples(fit), _tails(level), axis=0).tolist()
    return {name: (low[k], high[k]) for k, name in enumerate(fit.law.names)}


def prediction_interval(fit: Fit, points: Points, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper ends for the law's loss at ``points``, without the noise of a single run."""
    _resamples(fit)
    low, high = np.quantile(fit.law.resampled(points), _tails(level), axis=0)
    return low, high


def problem_of(fit: Fit) -> Problem:
    """Return the problem that the fit solved."""
    return pose(fit.observations, fit.law.outer, fit.law.mapping, fit.fixed, fit.bounds)


def _refits(
    problem: Problem, start: FloatArray, delta: float, batches: list[FloatArray], workers: int | None
) -> Iterator[FloatArray]:
    """Yield the refitted coefficients batch by batch, in processes where that pays or is asked for."""
    refit = partial(_refit, problem, start, delta)
    count = os.cpu_count() or 1 if workers is None else workers
    rest = batches
    if workers is None:
        began = time.perf_counter()
        yield refit(batches[0])
        rest = batches[1:]
        count = count if (time.perf_counter() - began) * len(rest) > PAYS else 1
    if min(count, len(rest)) <= 1:
        yield from map(refit, rest)
        return
    with ProcessPoolExecutor(min(count, len(rest)), mp_context=_context()) as pool:
        yield from pool.map(refit, rest)


def _refit(problem: Problem, start: FloatArray, delta: float, weights: FloatArray) -> FloatArray:
    starts = np.tile(start, (len(weights), 1))
    ends = side_by_side(problem.weighted(weights), starts, delta=delta, tolerance=1e-9, damping=1e-6)
    return problem.vectors(ends.u_SP)


def _context() -> multiprocessing.context.BaseContext:
    """Fork where the system has it: a spawned worker would run an unguarded script of the user's again."""
    return multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else None)


def _weights(
    data: Observations, problem: Problem, scheme: Scheme, count: int, random: np.random.Generator
) -> FloatArray:
    """Return how often each row counts in each resample; draws that cannot determine the law are drawn again."""
    weights = np.empty((count, len(data)))
    for k in range(count):
        for _ in range(100):
            weights[k] = _draw(data, scheme, random)
            if _varies(problem, weights[k] > 0):
                break
        else:
            raise InputError(
                f"{data.source}: {len(data.runs)} runs are too few to resample: most draws leave an axis constant"
            )
    return weights


def _draw(data: Observations, scheme: Scheme, random: np.random.Generator) -> FloatArray:
    if scheme is Scheme.PAPER:
        kept = random.permutation(len(data)) < PAPER_SHARE * len(data)
        return kept.astype(float)
    units = np.unique(data.run, return_inverse=True)[1] if scheme is Scheme.RUNS else np.arange(len(data))
    count = int(units.max()) + 1
    return random.multinomial(count, np.full(count, 1.0 / count))[units].astype(float)


def _varies(problem: Problem, drawn: np.ndarray) -> bool:
    """Tell whether a draw keeps more rows than coefficients, and two values of every axis that the law uses."""
    axes = [problem.N]
    axes += [problem.D] if problem.outer.uses_tokens and np.ptp(problem.D) > 0 else []
    axes += [problem.E] if problem.outer.uses_experts and np.ptp(problem.E) > 0 else []
    axes += [] if not problem.mapping.loops else [problem.R]
    varied = all(np.ptp(axis[drawn]) > 0 for axis in axes if np.ptp(axis) > 0)
    return varied and int(drawn.sum()) > len(problem.free)


def _resamples(fit: Fit) -> FloatArray:
    if fit.law.resamples is None:
        raise InputError(f"{fit.law.name}: there are no resampled laws; call resample(fit) first")
    return fit.law.resamples


def _tails(level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise InputError(f"level is {level}; it should lie between 0 and 1, as 0.9")
    return (1 - level) / 2, (1 + level) / 2


def _scheme(scheme: Scheme | str) -> Scheme:
    known = [each.value for each in Scheme]
    if isinstance(scheme, str) and scheme not in known:
        raise InputError(f"scheme {shown(scheme)} is not known{nearest(scheme, known)}; choose from {', '.join(known)}")
    return Scheme(scheme)
