"""A saturating curve over test-time recurrence: the paper's bounded mapping, on a loss measured at R = 1, 2, …"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopscale.errors import InputError
from loopscale.laws import mapping

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
    found = curve(min(fits, key=lambda each: float(each.cost)).x)
    rmse = float(np.sqrt(np.mean((found(R) - L) ** 2)))
    return Saturation(found.once, found.kappa1, found.kappa2, rmse, rising)
