"""What predictive intervals add to the uncertainty of the coefficients, estimated by backtests inside the sweep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.held_out import top_decades
from loopscale.fitting.noise import noise_components, robust_scale, run_noise
from loopscale.fitting.problem import Problem
from loopscale.fitting.resample import refit, run_weights, varies
from loopscale.fitting.residuals import outlier_limit
from loopscale.fitting.search import finish, without_far_rows
from loopscale.scaling import Spread
from loopscale.scaling.trust import TYPICAL_GROWTH

GROWTH_WEIGHT = 4.0
"""Weight of the growth in public sweeps, in backtests."""
DRIFT, GROWTH_SHARE = 0.01, 0.8
"""By how much, per decade beyond the data, ln losses lie below a law in public sweeps, and the share of the growth of
its error that remains once that is subtracted."""
LEAST_GROWTH = 0.3
"""A backtest that finds no error at all counts as this part of the typical growth: one of them proves little."""
HIDDEN_DECADES = (0.5, 1.0, 1.5)
BACKTEST_REFITS = 25
MIN_RUNS = 6


def predictive_spread(data: Observations, problem: Problem, u: FloatArray, delta: float, seed: int = 0) -> Spread:
    """Estimate what predictive intervals add: noise between runs, and the growth of the law's error beyond the data.

    Growth comes from backtests inside the sweep that hide its top half, one and one and a half decades of compute,
    averaged geometrically with the growth in public sweeps.
    """
    flops, residuals, free = data.points.train_flops, problem.residuals(u), len(problem.free)
    backtests = (excess(data, problem, u, delta, decades, seed) for decades in HIDDEN_DECADES)
    excesses = [value for value in backtests if value is not None]
    parts = noise_components(residuals, data.run, free)
    within = None if parts is None else parts.observation
    noise = run_noise(residuals, data.run, free)
    growth = GROWTH_SHARE * mean_growth(excesses)
    return Spread(noise, growth, float(flops.max()), len(excesses), within, DRIFT)


def mean_growth(excesses: Sequence[float], typical: float = TYPICAL_GROWTH, weight: float = GROWTH_WEIGHT) -> float:
    """Return the geometric mean of the backtests' errors per decade, with ``typical`` as ``weight`` more of them."""
    floor = 2 * np.log(LEAST_GROWTH * typical)
    logs = [max(float(np.log(max(value, 1e-300))), floor) for value in excesses]
    return float(np.exp((weight * 2 * np.log(typical) + sum(logs)) / (weight + len(logs)) / 2))


def excess(
    data: Observations, problem: Problem, u: FloatArray, delta: float, decades: float, seed: int
) -> float | None:
    """Return the squared error per decade that a backtest finds beyond noise; None where it cannot be done."""
    flops = data.points.train_flops
    sound = sound_rows(problem.residuals(u), len(problem.free))  # one diverged run would widen every interval
    top = top_decades(flops, decades)
    run, hidden_rows = data.run[~top], top & sound
    if len(np.unique(run)) < MIN_RUNS or not top.any() or not varies(problem, ~top):
        return None
    inner = problem.rows(~top)
    best_u = finish(inner, u[None, :], delta, without_far_rows(inner, u)).u_SP[0]
    weights = run_weights(run, inner, BACKTEST_REFITS, np.random.default_rng(seed))
    if weights is None:
        return None
    refits_u = refit(inner, best_u, delta, weights, rough=True)
    if not hidden_rows.any():
        return None
    hidden = problem.rows(hidden_rows)
    errors, drawn = hidden.residuals(best_u), hidden.residuals(refits_u)
    noise = robust_scale(inner.residuals(best_u), len(inner.free))
    distance = np.log10(flops[hidden_rows] / flops[~top].max())
    return float(np.sum(errors**2 - drawn.var(axis=0) - noise**2) / np.sum(distance))


def sound_rows(residuals: FloatArray, free: int) -> BoolArray:
    """Return which rows are not outliers of a fit."""
    limit = outlier_limit(len(residuals), free) * max(robust_scale(residuals, free), 1e-300)
    return np.asarray(np.abs(residuals) <= limit)
