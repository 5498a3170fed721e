"""The compute-optimal frontier of a sweep: L*(C) = c + a C^-b from its runs, with a floor that other sweeps inform.

Every run is moved to the best size of its compute by the fitted law's distance between the two, and counts the less the
larger that distance is. Three coefficients are fitted to the result: the loss and its slope at the largest compute, and
the floor as a share of that loss. A sweep of one or two decades hardly
determines its floor, so the posterior has a prior, and is computed on a grid.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.isoflop import isoflop
from loopscale.fitting.noise import robust_deviation, robust_scale, weighted_noise
from loopscale.scaling import DENSE, Frontier, Points, Proportions, ScalingLaw, StatedCost, above_optimum, lowest
from loopscale.scaling.frontier import BY_SIZE, closeness, rounded_draws
from loopscale.scaling.trust import OFF_FRONTIER

FLOOR, FLOOR_WIDTH = 0.65, 0.1
"""The floor c as a share of the lowest loss that a sweep reaches on its frontier: in public sweeps .5 to .8. Chosen by
``experiments/forecast/evaluate.py --leave-one-out``."""
TEMPER = 0.1
"""Share of its information that a run counts for: the form is not exact, so runs err together. The error of forecasts
is flat between .05 and .15."""
LEAST_NOISE = 0.003
"""Of a run, in ln loss: data without noise, as in a simulation, should not rest on one run."""
CUT = 3.0
"""Runs beyond so many robust deviations count less, as in Huber's estimate."""
NEAR = 0.01
"""Runs up to so far above the frontier, in ln loss, are on it."""
FEWEST = 4
"""Runs that a frontier needs."""
FEWEST_MINIMA = 3
DRAWS = 200
FLOORS = np.linspace(0.0, 0.95, 39)
SLOPES = np.exp(np.linspace(np.log(0.008), np.log(0.2), 45))
"""-d ln L* / d ln C at the largest compute of a sweep: .03 to .08 in public sweeps."""


def fit_frontier(data: Observations, law: ScalingLaw) -> Frontier | None:
    """Return the frontier of a sweep whose law is known; None where the law has no best size, or runs are too few."""
    if not law.outer.uses_tokens or len(data.runs) < FEWEST:
        return None
    cost, models = stated_cost(data), _reference(data)
    flops = cost.flops(data.points)
    optimal = lowest(law, flops, models, cost)[0]
    if not np.isfinite(optimal).all() or np.ptp(np.log(flops)) < 0.1:
        return None
    moved = np.log(law(data.points)) - optimal
    errors = np.hypot(max(_noise(data, law), LEAST_NOISE), OFF_FRONTIER * moved)
    draws = posterior_draws(np.log(flops / flops.max()), np.log(data.loss) - moved, errors)
    above, top = above_optimum(law, data.points, cost), float(flops.max())
    near = int(np.sum(above < NEAR))
    curve = Frontier(top, rounded_draws(draws.tolist()), near, *_minima(data, top), models, cost)
    weight = closeness(above)
    centre = np.log(law(data.points)) + weight * (curve.log_loss(flops)[0] - optimal)
    return replace(curve, noise=weighted_noise(np.log(data.loss) - centre, weight**2, len(law.names)))


def _minima(data: Observations, flops: float) -> tuple[float | None, float | None]:
    """Return N* at ``flops`` and its exponent by isoFLOP minima; None and None where there are fewer than three."""
    try:
        curves = isoflop(data)
    except InputError:  # several designs, or no shared budgets
        return None, None
    if sum(not budget.reason for budget in curves.budgets) < FEWEST_MINIMA or not 0 < curves.size_exponent < 1:
        return None, None
    return float(curves.optimal_size(flops)), curves.size_exponent


def posterior_draws(x: FloatArray, y: FloatArray, errors: FloatArray, count: int = DRAWS, seed: int = 0) -> FloatArray:
    """Draw loss, slope and floor share at x = 0, given ln losses ``y`` at ln computes ``x`` and the priors."""
    places, where = np.unique(x, return_inverse=True)
    share = FLOORS[:, None, None]
    curves = np.log(share + (1 - share) * np.exp(np.minimum(-(SLOPES[:, None] / (1 - share)) * places, 50.0)))
    squares, middle = curves**2, float(y.mean())

    def best_level(weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the level at which each curve misses least, and by how much: sums over rows of one compute."""
        sums = (np.bincount(where, part) for part in (weight, weight * (y - middle), weight * (y - middle) ** 2))
        one, first, second = sums
        level = (first.sum() - curves @ one) / one.sum()
        misfit = second.sum() - 2 * curves @ first + squares @ one - one.sum() * level**2
        return middle + level, np.maximum(misfit, 0.0)

    weight = plain = errors**-2.0
    for _ in range(3):
        level, misfit = best_level(weight)
        lowest_at = np.unravel_index(np.argmin(misfit), misfit.shape)
        best = (y - curves[lowest_at][where] - level[lowest_at]) / errors
        scale = max(robust_deviation(best), 1.0)
        weight = plain * np.minimum(1.0, CUT * scale / np.maximum(np.abs(best), 1e-12))
    level, misfit = best_level(weight)
    inflation = max(float(misfit.min()) / max(len(x) - 3, 1), 1.0)
    log_posterior = -0.5 * TEMPER * misfit / inflation - 0.5 * ((FLOORS[:, None] - FLOOR) / FLOOR_WIDTH) ** 2
    mass = np.exp(log_posterior - log_posterior.max()).ravel()
    random = np.random.default_rng(seed)
    steps = (np.arange(count) + 0.5) / count
    flat = np.searchsorted(np.cumsum(mass) / mass.sum(), steps)
    floor, slope = np.unravel_index(np.minimum(flat, mass.size - 1), misfit.shape)
    level_error = np.sqrt(inflation / (TEMPER * weight.sum()))
    scores = np.array([NormalDist().inv_cdf(step) for step in steps.tolist()])
    noise = random.permutation(scores) * level_error
    return np.column_stack([np.exp(level[floor, slope] + noise), SLOPES[slope], FLOORS[floor]])


def _noise(data: Observations, law: ScalingLaw) -> float:
    """Return the noise of a run about the law: that of its predictive intervals, or of its residuals."""
    if law.spread is not None:
        return law.spread.noise
    return robust_scale(np.log(law(data.points) / data.loss), len(law.names))


def stated_cost(data: Observations) -> StatedCost:
    """Return how the file's own training FLOPs compare to 6 N_unroll D: a power of N, or no change without a column."""
    stated = next((np.asarray(data.extra[name]) for name in data.extra if name.strip().lower() in FLOP_COLUMNS), None)
    if stated is None:
        return BY_SIZE
    try:
        flops = stated.astype(float)
    except ValueError:
        return BY_SIZE
    N, ratio = data.points.active, flops / data.points.train_flops
    if not (np.isfinite(ratio).all() and (ratio > 0.5).all() and (ratio < 20).all()):
        return BY_SIZE  # another unit, which the reader of the table has dealt with
    x, y = np.log(N / 1e9), np.log(ratio)
    if np.ptp(x) < 1e-6:
        return StatedCost(float(np.exp(y.mean())), 0.0, float(N.min()), float(N.max()))
    exponent, log_factor = np.polyfit(x, y, 1)
    return StatedCost(float(np.exp(log_factor)), float(exponent), float(N.min()), float(N.max()))


FLOP_COLUMNS = ("flops", "flop", "training_flop", "training_flops", "train_flops")


def _reference(data: Observations) -> Proportions:
    """Return the proportions of the models that the frontier is of: those of most of the largest runs."""
    p = data.points
    if np.all(p.experts == 1) and np.all(p.recurrence == 1):
        return DENSE
    top = np.argsort(-p.train_flops, kind="stable")[: max(5, len(data) // 5)]
    pairs, counts = np.unique(np.column_stack([p.experts[top], p.recurrence[top]]), axis=0, return_counts=True)
    experts, recurrence = pairs[np.argmax(counts)]
    return proportions(p, (p.experts == experts) & (p.recurrence == recurrence))


def proportions(points: Points, rows: FloatArray) -> Proportions:
    """Return the typical proportions of some of the models, all of one E and R."""
    loop = 0.0 if points.loop is None else float(np.median((points.loop / points.active)[rows]))
    m = 1.0 if points.total is None else float(np.median((points.active / points.total)[rows]))
    return Proportions(float(points.experts[rows][0]), float(points.recurrence[rows][0]), loop, m)
