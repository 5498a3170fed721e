"""Numerical helpers for modules that start fast: importing scipy's own would cost nearly half a second."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from loopscale.core.arrays import BoolArray, FloatArray


def geometric_bisection(
    below: Callable[[FloatArray], ArrayLike], low: ArrayLike, high: ArrayLike, rounds: int = 100
) -> FloatArray:
    """Return where ``below``, which is true first and false from some point on, turns false between two positive ends.

    Works on arrays, each element for itself. Halves the logarithm of the range ``rounds`` times.
    """
    low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
    for _ in range(rounds):
        middle = np.sqrt(low * high)
        still: BoolArray = np.asarray(below(middle), bool)
        low, high = np.where(still, middle, low), np.where(still, high, middle)
    return np.asarray(high)


@lru_cache(maxsize=256)
def student_quantile(level: float, degrees: float) -> float:
    """Return the t for which a share ``level`` of Student's distribution lies between -t and t.

    ``degrees`` of freedom are above zero and need not be whole.
    """
    outside = 1 - level
    return float(geometric_bisection(lambda t: _student_outside(float(t), degrees) > outside, 1e-12, 1e30))


def _student_outside(t: float, degrees: float) -> float:
    """Return how much of Student's distribution lies beyond -t and t."""
    x = degrees / (degrees + t * t)
    if x < 0.5:
        return _incomplete_beta(degrees / 2, 0.5, x)
    return 1 - _incomplete_beta(0.5, degrees / 2, t * t / (degrees + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b) by its series in x, for x up to 1/2."""
    order = np.arange(400.0)
    terms = np.cumprod((a + b + order) / (a + 1 + order) * x)
    beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return math.exp(a * math.log(x) + b * math.log1p(-x) - math.log(a) - beta) * (1 + float(terms.sum()))


def wilson_interval(share: float, count: int, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval of a share of ``count`` items: 0 of 10 right is 0 to 0.28, not 0 ± 0."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    return max(centre - half, 0.0), min(centre + half, 1.0)
