"""Refits on resampled data: whole runs drawn with replacement, and the other schemes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import FloatArray, IntArray
from loopscale.core.errors import InputError
from loopscale.fitting.descent import descend, most_together
from loopscale.fitting.problem import Problem

PAPER_SHARE = 0.9
BATCH, ROUNDS = 20, 4
"""Refits handed out together: so many, or so many times those that run side by side."""
PAYS = 5.0
"""Seconds of work left from which a pool of processes pays for its start."""
ROUGH = MappingProxyType({"tolerance": 1e-5, "patience": 4, "steps": 30})
"""Settings of refits of which only the spread is needed."""

Progress = Callable[[int, int], None]
"""Called with how many refits are done, and the total."""


class Scheme(Enum):
    """What a resampled data set is made of."""

    RUNS = "runs"
    """As many runs as there are, with replacement: rows of one run stay together."""
    OBSERVATIONS = "observations"
    """As many rows as there are, with replacement."""
    PAPER = "paper"
    """90% of the rows without replacement, as the paper does: intervals about three times too narrow."""
    NOISE = "noise"
    """The same rows with new losses drawn around the law; used where there are too few runs to leave any out."""


def resample(
    problem: Problem,
    u: FloatArray,
    delta: float,
    run: NDArray[np.str_],
    noise: float,
    *,
    scheme: Scheme = Scheme.RUNS,
    count: int = 100,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[FloatArray, Scheme]:
    """Refit the law on ``count`` resampled data sets, each descent from the optimum ``u`` of the whole data.

    Runs are drawn with replacement by default, because the points along one run are not independent. On simulated and
    public sweeps a refit from the optimum was never above a full search of the same resample. ``noise`` is the
    standard deviation of ln loss that new losses are drawn with, where there are too few runs to leave any out.
    ``workers`` processes share the refits; None means several only where the work takes long. Returns the coefficients
    of the refits, one row each, and the scheme by which their data were drawn.
    """
    if count < 2:
        raise InputError(f"`resamples` is {count}", remedy="resampling needs 2 or more refits")
    random = np.random.default_rng(seed)
    weights = None if scheme is Scheme.NOISE else run_weights(run, problem, count, random, scheme)
    if weights is None:
        return _noisy_refits(problem, u, delta, noise, count, random), Scheme.NOISE
    rows = list[FloatArray]()
    batch = max(BATCH, ROUNDS * most_together(problem))
    for refitted in _refits(problem, u, delta, np.array_split(weights, -(-count // batch)), workers):
        rows.append(refitted)
        if progress is not None:
            progress(sum(map(len, rows)), count)
    return np.concatenate(rows), scheme


def _noisy_refits(
    problem: Problem, u: FloatArray, delta: float, noise: float, count: int, random: np.random.Generator
) -> FloatArray:
    """Refit to losses drawn around the fitted law: a sweep too small to leave runs out still has noise."""
    fitted = problem.residuals(u) + problem.log_loss
    shifts = noise * random.standard_normal((count, len(problem)))
    optima = descend(
        replace(problem, log_loss=fitted + shifts), np.tile(u, (count, 1)), delta=delta, tolerance=1e-9, damping=1e-6
    )
    return problem.vectors(optima.u_SP)


def _refits(
    problem: Problem, start: FloatArray, delta: float, batches: list[FloatArray], workers: int | None
) -> Iterator[FloatArray]:
    """Yield the refitted coefficients batch by batch, in processes where that pays or is asked for."""
    work = partial(_refit, problem, start, delta)
    count = os.cpu_count() or 1 if workers is None else workers
    rest = batches
    if workers is None:
        began = time.perf_counter()
        yield work(batches[0])
        rest = batches[1:]
        count = count if (time.perf_counter() - began) * len(rest) > PAYS else 1
    if min(count, len(rest)) <= 1:
        yield from map(work, rest)
        return
    import multiprocessing  # which few fits need
    from concurrent.futures import ProcessPoolExecutor

    # Fork where the system has it: a spawned worker would run an unguarded script of the user's again.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    with ProcessPoolExecutor(min(count, len(rest)), mp_context=multiprocessing.get_context(method)) as pool:
        yield from pool.map(work, rest)


def refit(
    problem: Problem,
    start: FloatArray,
    delta: float,
    weights: FloatArray,
    *,
    rough: bool = False,
) -> FloatArray:
    """Return where descents from ``start`` end, one for each row of weights, in search coordinates.

    ``rough`` ones end early: enough for their spread, where the rows hardly determine the law and none would settle.
    """
    starts = np.tile(start, (len(weights), 1))
    settings: Any = ROUGH if rough else {"tolerance": 1e-9}
    return descend(replace(problem, weight=weights), starts, delta=delta, damping=1e-6, **settings).u_SP


def _refit(problem: Problem, start: FloatArray, delta: float, weights: FloatArray) -> FloatArray:
    return problem.vectors(refit(problem, start, delta, weights))


def run_weights(
    run: NDArray[np.str_],
    problem: Problem,
    count: int,
    random: np.random.Generator,
    scheme: Scheme = Scheme.RUNS,
) -> FloatArray | None:
    """Return how often each row counts in each resample, or None where most draws cannot determine the law.

    Keeping only the draws that can would favour those near the whole data, and give too narrow intervals.
    """
    weights, accepted = np.empty((count, len(run))), 0
    units = np.unique(run, return_inverse=True)[1] if scheme is Scheme.RUNS else np.arange(len(run))
    for _ in range(2 * count):
        weights[accepted] = _draw(units, scheme, random)
        accepted += varies(problem, weights[accepted] > 0)
        if accepted == count:
            break
    if accepted < count:
        return None
    return weights if problem.weight is None else weights * problem.weight


def _draw(units: IntArray, scheme: Scheme, random: np.random.Generator) -> FloatArray:
    """Return how often each row is drawn; rows of one unit stay together."""
    if scheme is Scheme.PAPER:
        return (random.permutation(len(units)) < PAPER_SHARE * len(units)).astype(float)
    count = int(units.max()) + 1
    return random.multinomial(count, np.full(count, 1.0 / count))[units].astype(float)


def varies(problem: Problem, drawn: np.ndarray) -> bool:
    """Tell whether a draw keeps more rows than coefficients, and two values of every axis that the law uses."""
    axes = [problem.N]
    axes += [problem.D] if problem.outer.uses_tokens and np.ptp(problem.D) > 0 else []
    axes += [problem.E] if problem.outer.uses_experts and np.ptp(problem.E) > 0 else []
    axes += [problem.R] if problem.mapping.loops else []
    varied = all(np.ptp(axis[drawn]) > 0 for axis in axes if np.ptp(axis) > 0)
    return varied and int(drawn.sum()) > len(problem.free)
