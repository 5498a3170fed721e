"""How far the data determine the law: covariance, refits on resampled data, and the intervals that follow."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loopscale.arrays import FloatArray
from loopscale.errors import InputError, choice
from loopscale.fit.data.read import Observations
from loopscale.fit.problem import Problem
from loopscale.fit.solver import side_by_side
from loopscale.laws import Points, ScalingLaw

if TYPE_CHECKING:
    from loopscale.fit.fitting import Fit


class Scheme(Enum):
    """What a resampled data set is made of."""

    RUNS = "runs"
    """As many runs as there are, with replacement: rows of one run stay together."""
    OBSERVATIONS = "observations"
    """As many rows as there are, with replacement."""
    PAPER = "paper"
    """90% of the rows without replacement, as the paper does: intervals about three times too narrow."""


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
    kind = scheme if isinstance(scheme, Scheme) else choice(Scheme, scheme, "scheme")
    if count < 2:
        raise InputError(f"count is {count}; resampling needs 2 or more refits")
    problem = fit.problem
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


def law_interval(law: ScalingLaw, points: Points, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper ends for the law's own loss at ``points``, without the noise of a single run."""
    low, high = np.quantile(law.resampled(points), _tails(level), axis=0)
    return low, high


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
    axes += [problem.R] if problem.mapping.loops else []
    varied = all(np.ptp(axis[drawn]) > 0 for axis in axes if np.ptp(axis) > 0)
    return varied and int(drawn.sum()) > len(problem.free)


def _resamples(fit: Fit) -> FloatArray:
    if fit.law.resamples is None:
        raise InputError(f"{fit.law.name}: there are no resampled laws; fit with resamples=100, or call fit.resample()")
    return fit.law.resamples


def _tails(level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise InputError(f"level is {level}; it should lie between 0 and 1, as 0.9")
    return (1 - level) / 2, (1 + level) / 2


@dataclass(frozen=True, eq=False)
class Covariance:
    """Covariances in search coordinates, of the free coefficients that are not on a bound."""

    names: tuple[str, ...]
    inverse: FloatArray
    """The inverse Hessian of the objective."""
    robust: FloatArray
    """The covariance: the sandwich over runs, which needs neither independent nor equal errors within a run."""
    runs: int

    @property
    def errors(self) -> dict[str, float]:
        """Standard errors, in search coordinates: relative ones for coefficients searched in logarithm."""
        return dict(zip(self.names, np.sqrt(np.diag(self.robust)).tolist(), strict=True))

    @property
    def correlation(self) -> FloatArray:
        """How the coefficients' errors go together."""
        deviation = np.sqrt(np.diag(self.inverse))
        return np.asarray(self.inverse / np.outer(deviation, deviation))


def covariance(problem: Problem, u: FloatArray, delta: float, run: NDArray[np.str_]) -> Covariance:
    """Return the covariance of a Huber fit at its optimum ``u``."""
    held = set(problem.at_bound(u))
    keep = np.array([name not in held for name in problem.free_names], dtype=bool)
    residuals, jacobian = problem.linearised(u)
    jacobian = jacobian[keep]
    # The share of rows within delta stands for the curvature of each: smoother than counting just those rows.
    inner = max(float(np.mean(np.abs(residuals) <= delta)), 1.0 / len(residuals))
    inverse = _inverse(inner * jacobian @ jacobian.T)
    scores, runs = _by_run(jacobian * np.clip(residuals, -delta, delta), run)
    size, free = len(residuals), len(problem.free)
    small = runs / max(runs - 1, 1) * (size - 1) / max(size - free, 1)
    robust = small * inverse @ (scores @ scores.T) @ inverse
    return Covariance(tuple(np.array(problem.free_names)[keep].tolist()), inverse, robust, runs)


def _by_run(scores: FloatArray, run: NDArray[np.str_]) -> tuple[FloatArray, int]:
    """Add up the columns of each run."""
    names, which = np.unique(run, return_inverse=True)
    order = np.argsort(which, kind="stable")
    first = np.searchsorted(which[order], np.arange(len(names)))
    return np.add.reduceat(scores[:, order], first, axis=1), len(names)


def _inverse(matrix: FloatArray) -> FloatArray:
    scale = 1.0 / np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    return np.linalg.pinv(matrix * np.outer(scale, scale), rcond=1e-14, hermitian=True) * np.outer(scale, scale)


def fit_covariance(fit: Fit) -> Covariance:
    """Return the covariance of the fit's free coefficients."""
    problem = fit.problem
    return covariance(problem, problem.point(fit.law.coefficients), fit.delta, fit.observations.run)


def intraclass_correlation(fit: Fit) -> float:
    """Return the share of the residuals' variance that rows of one run have in common (intraclass correlation)."""
    names, which, sizes = np.unique(fit.observations.run, return_inverse=True, return_counts=True)
    rows, groups = len(which), len(names)
    if groups < 2 or rows == groups:
        return 0.0
    residuals = fit.residuals - fit.residuals.mean()
    means = np.bincount(which, residuals) / sizes
    between = float(sizes @ means**2) / (groups - 1)
    within = float(np.sum((residuals - means[which]) ** 2)) / (rows - groups)
    typical_size = (rows - float(sizes @ sizes) / rows) / (groups - 1)
    return float(np.clip((between - within) / max(between + (typical_size - 1) * within, 1e-300), 0.0, 1.0))


@dataclass(frozen=True)
class Noise:
    """Standard deviations of ln loss about the law: of a single observation, and of a whole run."""

    observation: float
    run: float

    def __post_init__(self) -> None:
        if not (np.isfinite([self.observation, self.run]).all() and self.observation > 0 and self.run >= 0):
            raise InputError(f"noise is {self.observation} and {self.run} a run; the first should be above zero")

    @classmethod
    def of(cls, fit: Fit) -> Noise:
        """Split the residuals' variance into that within runs and that between them."""
        _, run, rows = np.unique(fit.observations.run, return_inverse=True, return_counts=True)
        residual, n, k, p = fit.residuals, len(fit.residuals), len(rows), len(fit.free)
        if n <= p:
            raise InputError(f"{n} rows leave no residual for {p} coefficients; give the noise")
        if n == k or k <= p:  # one row a run, or too few runs to see their spread: all of it goes to the observations
            return cls(float(np.sqrt(residual @ residual / (n - p))), 0.0)
        mean = np.bincount(run, residual) / rows
        within = float(np.sum((residual - mean[run]) ** 2) / (n - k))
        between = float(np.sum(rows * mean**2) / (k - p))
        common = (n - np.sum(rows**2) / n) / (k - 1)
        return cls(float(np.sqrt(within)), float(np.sqrt(max(between - within, 0.0) / common)))

    @property
    def new_run(self) -> float:
        """The variance of a new run's final ln loss."""
        return self.observation**2 + self.run**2
