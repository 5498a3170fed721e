"""Chinchilla's three approaches to the compute-optimal frontier side by side: envelope, isoFLOP curves and a law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loopscale.core.arrays import FloatArray, IntArray
from loopscale.core.errors import InputError
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.frontier import LEAST_NOISE, posterior_draws
from loopscale.fitting.isoflop import isoflop
from loopscale.scaling import Frontier, ScalingLaw, lowest

FEWEST = 3
"""Points that the lower envelope needs."""


@dataclass(frozen=True)
class Approach:
    """The frontier by one approach, at one budget."""

    approach: str
    points: int
    """Runs on the envelope, budgets with a lowest point, or runs that the law was fitted to."""
    flops: float
    size: float
    """N*(C)"""
    tokens: float
    """D*(C)"""
    loss: float
    """L*(C)"""
    size_exponent: float
    """d ln N* / d ln C"""


Curve = Callable[[float], tuple[float, float]]
"""N* and L* at a budget."""


def approaches(data: Observations, law: ScalingLaw, flops: float) -> tuple[Approach, ...]:
    """Return N*, D* and L* at a budget by each approach that the data allow."""
    frontier = law.frontier
    if frontier is None:
        raise InputError(f"law {law.name} has no compute-optimal frontier", where=data.source)
    curves = {
        "1, lower envelope": _envelope(data, frontier),
        "2, isoFLOP minima": _minima(data, frontier),
        "3, law L(N, D)": (len(data), _of_law(law, frontier)),
    }
    return tuple(_at(name, *curve, frontier, flops) for name, curve in curves.items() if curve is not None)


def _at(name: str, points: int, curve: Curve, frontier: Frontier, flops: float) -> Approach:
    size, loss = curve(flops)
    exponent = np.log(curve(flops * 1.1)[0] / curve(flops / 1.1)[0]) / np.log(1.21)
    tokens = float(frontier.cost.tokens(flops, size, frontier.models.unroll()))
    return Approach(name, points, float(flops), float(size), tokens, float(loss), float(exponent))


def _of_law(law: ScalingLaw, frontier: Frontier) -> Curve:
    def curve(C: float) -> tuple[float, float]:
        log_loss, size = lowest(law, np.array([C]), frontier.models, frontier.cost)
        return float(size[0]), float(np.exp(log_loss[0]))

    return curve


def _envelope(data: Observations, frontier: Frontier) -> tuple[int, Curve] | None:
    """Return the frontier through the runs that no cheaper run beats."""
    flops = frontier.cost.flops(data.points)
    rows = lower_envelope(flops, data.loss)
    if len(rows) < FEWEST or np.ptp(np.log(flops[rows])) < 0.5:
        return None
    return len(rows), _curve(flops[rows], data.points.active[rows], data.loss[rows], frontier.flops)


def lower_envelope(flops: FloatArray, loss: FloatArray) -> IntArray:
    """Return the rows whose loss no run of the same or less compute reaches, from the cheapest up."""
    order = np.lexsort((loss, flops))
    before = np.concatenate([[np.inf], np.minimum.accumulate(loss[order])[:-1]])
    return np.asarray(order[loss[order] < before])


def _minima(data: Observations, frontier: Frontier) -> tuple[int, Curve] | None:
    """Return the frontier through the lowest points of isoFLOP parabolas."""
    try:
        budgets = [budget for budget in isoflop(data).budgets if not budget.reason]
    except InputError:  # the runs do not share budgets
        return None
    flops, size, loss = (np.array([getattr(budget, name) for budget in budgets]) for name in ("flops", "size", "loss"))
    return len(budgets), _curve(flops, size, loss, frontier.flops)


def _curve(flops: FloatArray, size: FloatArray, loss: FloatArray, top: float) -> Curve:
    """Return a power of C through sizes, and c + a C^-b, with the floor's prior, through losses."""
    exponent, offset = np.polyfit(np.log(flops), np.log(size), 1)
    draws = posterior_draws(np.log(flops / top), np.log(loss), np.full(len(loss), LEAST_NOISE))
    curve = Frontier(top, tuple(map(tuple, draws.tolist())))
    return lambda C: (float(np.exp(offset + exponent * np.log(C))), float(np.exp(curve.log_loss(C)[0])))
