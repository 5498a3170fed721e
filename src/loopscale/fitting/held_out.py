"""Held-out runs: which to hide, how well they are predicted, and which forms predict them as well as the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.fitting.noise import winsorised
from loopscale.fitting.problem import Problem
from loopscale.fitting.resample import refit, varies

FOLDS = 5


def top_decades(flops: FloatArray, decades: float) -> BoolArray:
    """Return the mask of the rows within the top ``decades`` of training compute."""
    return np.asarray(flops > flops.max() / 10**decades * (1 + 1e-9))


class IntervalScores(NamedTuple):
    """How well losses were predicted with intervals, in ln loss."""

    coverage: float
    """Share of the losses inside their interval."""
    bias: float
    """Mean of ln predicted - ln measured."""
    median_width: float
    interval_score: float


def score_intervals(
    measured: FloatArray, predicted: FloatArray, low: FloatArray, high: FloatArray, level: float
) -> IntervalScores:
    """Score predicted losses and their intervals against measured ones."""
    loss, value, below, above = np.log(measured), np.log(predicted), np.log(low), np.log(high)
    return IntervalScores(
        coverage=float(np.mean((below <= loss) & (loss <= above))),
        bias=float(np.mean(value - loss)),
        median_width=float(np.median(above - below)),
        interval_score=interval_score(below, above, loss, level),
    )


def interval_score(low: FloatArray, high: FloatArray, loss: FloatArray, level: float) -> float:
    """Return the mean of width + 2 / (1 - level) x miss, all in ln loss; lower is better."""
    miss = np.maximum(low - loss, 0) + np.maximum(loss - high, 0)
    return float(np.mean(high - low + 2 / (1 - level) * miss))


def folds_of(run: NDArray[np.str_], group: IntArray | None = None) -> IntArray:
    """Return the fold of each row: runs stay together, and every group is in every fold as far as it goes."""
    group = np.zeros(len(run), dtype=np.int64) if group is None else group
    random, fold, start = np.random.default_rng(0), np.empty(len(run), dtype=np.int64), 0
    for g in range(int(group.max()) + 1):
        runs = np.unique(run[group == g])
        for k, name in enumerate(random.permutation(runs)):
            fold[(run == name) & (group == g)] = (start + k) % FOLDS
        start += len(runs)
    return fold


def held_out_errors(problem: Problem, u: FloatArray, delta: float, fold: IntArray) -> FloatArray | None:
    """Return the errors of ln loss on rows whose runs were left out, cut off where they are outliers.

    Each refit descends from the optimum ``u`` of all rows. None where the rows outside a fold cannot determine the law.
    """
    rest = np.array([fold != k for k in range(int(fold.max()) + 1)])
    if not all(varies(problem, rows) for rows in rest):
        return None
    weights = rest.astype(float) if problem.weight is None else rest * problem.weight
    residuals = problem.residuals(refit(problem, u, delta, weights))
    return winsorised(residuals[fold, np.arange(len(problem))], 0)


def rms(errors: FloatArray) -> float:
    """Return the root-mean-square error."""
    return float(np.sqrt(np.mean(errors**2)))


def as_good_as_the_best(errors: Sequence[FloatArray], run: NDArray[np.str_]) -> BoolArray:
    """Tell which forms have a squared error within one standard error of the lowest, over the runs."""
    best = int(np.argmin([rms(each) for each in errors]))
    _, which = np.unique(run, return_inverse=True)
    close = []
    for each in errors:
        apart = np.bincount(which, each**2 - errors[best] ** 2) / np.bincount(which)
        close.append(apart.mean() <= apart.std(ddof=1) / np.sqrt(len(apart)))
    return np.array(close)
