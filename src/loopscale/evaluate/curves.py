"""Curves through results: loss against passes at test time, accuracy against loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopscale.core.errors import InputError
from loopscale.scaling import mapping

LEAST = 3
"""As many points as coefficients; they leave no residual to judge the curve by."""


@dataclass(frozen=True)
class Saturation:
    """L(R) = once - kappa1 (1 - exp(-(R - 1) / kappa2)): the loss at R = 1, the most that passes can gain, how fast."""

    once: float
    kappa1: float
    kappa2: float
    rmse: float
    rising_from: int | None
    """The first recurrence after the best one, where the measured loss rises again; such points are not fitted."""

    def __call__(self, recurrence: ArrayLike) -> NDArray[np.float64]:
        """Return the curve's loss."""
        gain = mapping("bounded").gain(
            {"kappa1": self.kappa1, "kappa2": self.kappa2}, np.asarray(recurrence, float), 1.0
        )
        return np.asarray(self.once - gain, dtype=np.float64)

    @property
    def limit(self) -> float:
        """The loss that endless passes would reach, were the curve to hold."""
        return self.once - self.kappa1


def fit_saturation(recurrences: Sequence[int], losses: Sequence[float]) -> Saturation:
    """Fit the curve to the losses up to the best one: a loss that rises again later does not saturate."""
    order = np.argsort(recurrences)
    R, L = np.asarray(recurrences, float)[order], np.asarray(losses, float)[order]
    best = int(np.argmin(L))
    rising = int(R[best + 1]) if best + 1 < len(R) else None
    R, L = R[: best + 1], L[: best + 1]
    if len(R) < LEAST:
        raise InputError(
            f"a saturating curve needs {LEAST} recurrences or more up to the best one; there are {len(R)}"
            + (f", as the loss rises from R = {rising}" if rising else "")
        )

    from scipy.optimize import least_squares  # a plan need not wait for it

    scale = max(float(L[0] - L[-1]), 1e-9)

    def curve(c: NDArray[np.float64]) -> Saturation:
        return Saturation(float(c[0]), float(c[1]), float(c[2]), 0.0, rising)

    def misses(c: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((curve(c)(R) - L) / scale, dtype=np.float64)

    fits = [
        least_squares(
            misses,
            (L[0], scale, start),
            bounds=((-np.inf, 0.0, 1e-3), (np.inf, np.inf, 1e6)),
            x_scale=(scale, scale, 1.0),
        )
        for start in (0.3, 1.0, 3.0)
    ]
    best_curve = curve(min(fits, key=lambda fitted: float(fitted.cost)).x)
    return replace(best_curve, rmse=float(np.sqrt(np.mean((best_curve(R) - L) ** 2))))


@dataclass(frozen=True)
class AccuracyCurve:
    """accuracy = floor + (top - floor) / (1 + exp((loss - middle) / width)): from chance up as the loss falls."""

    floor: float
    top: float
    middle: float
    width: float
    rmse: float
    constant_rmse: float
    """The error of the mean alone."""
    informative: bool
    """Whether the curve predicts better than the mean, its coefficients counted (AICc)."""

    def __call__(self, loss: ArrayLike) -> NDArray[np.float64]:
        """Return the curve's accuracy."""
        z = np.clip((np.asarray(loss, float) - self.middle) / self.width, -500, 500)
        return np.asarray(self.floor + (self.top - self.floor) / (1 + np.exp(z)), dtype=np.float64)


FEWEST_MODELS = 8
"""Models that a curve of four coefficients needs to be judged at all."""


def fit_accuracy(losses: ArrayLike, accuracies: ArrayLike) -> AccuracyCurve:
    """Fit accuracy to validation loss over models, each a point; say whether that beats a constant."""
    L, A = np.asarray(losses, float), np.asarray(accuracies, float)
    if len(L) < FEWEST_MODELS or not (np.isfinite(L).all() and np.isfinite(A).all()) or np.ptp(L) == 0:
        raise InputError(
            f"accuracy against loss needs {FEWEST_MODELS} models or more with different losses; there are {len(L)}"
        )
    from scipy.optimize import least_squares

    low, high, spread = float(A.min()), float(A.max()), float(np.ptp(L))
    scale = max(high - low, 1e-9)

    def curve(c: NDArray[np.float64]) -> AccuracyCurve:
        return AccuracyCurve(float(c[0]), float(c[1]), float(c[2]), float(c[3]), 0.0, 0.0, True)

    def residuals(c: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((curve(c)(L) - A) / scale, dtype=np.float64)

    bounds = ((low - scale, low, L.min() - spread, 0.02 * spread), (high, high + scale, L.max() + spread, 10 * spread))
    fits = [
        least_squares(residuals, np.clip((low, high, middle, width), *bounds), bounds=bounds)
        for middle in np.quantile(L, (0.25, 0.5, 0.75))
        for width in (0.1 * spread, 0.5 * spread)
    ]
    best = min(fits, key=lambda fitted: float(fitted.cost)).x
    rmse = float(np.sqrt(np.mean((curve(best)(L) - A) ** 2)))
    constant = float(A.std())
    informative = _aicc(len(L), rmse, 4) < _aicc(len(L), constant, 1)
    return replace(curve(best), rmse=rmse, constant_rmse=constant, informative=informative)


def _aicc(count: int, rmse: float, coefficients: int) -> float:
    """Return the corrected Akaike criterion of a least-squares fit; its error's variance is one more coefficient."""
    k = coefficients + 1
    return count * math.log(max(rmse, 1e-12) ** 2) + 2 * k + 2 * k * (k + 1) / (count - k - 1)
