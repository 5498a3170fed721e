"""Lack of fit: a permutation test for trends in the residuals along the axes of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import FloatArray
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.noise import winsorised

if TYPE_CHECKING:
    from loopscale.fitting.result import Fit

SIGNIFICANT = {40: 0.1, 15: 0.06, 0: 0.04}
"""Probability of a trend by chance alone from which it is reported, by the least degrees of freedom: with few of them
the test warns a little more often than that."""
SHARES = {"N": 4.0, "C": 1.5, "N × D": 0.5}
"""Shares of that probability, 1 for other trends. A law follows most of a bend along N by its own exponent and
constant: what is left needs the largest share to be found as often as a bend along D or C."""
SHUFFLES = 199
"""Randomised data sets that a trend is compared with."""
NEGLIGIBLE = 5e-4
"""A trend below this share of the loss changes no decision, significant or not."""
MIN_DEGREES = 3
"""Degrees of freedom below which a trend cannot be distinguished from noise."""


@dataclass(frozen=True)
class Trend:
    """The strongest trend in the residuals."""

    along: str
    size: float
    """Largest deviation of the trend line, in ln loss."""
    p_value: float
    level: float
    """The p-value from which it is reported."""

    @property
    def significant(self) -> bool:
        """Whether chance alone hardly explains it."""
        return self.p_value <= self.level

    @property
    def matters(self) -> bool:
        """Whether it is significant and large enough to change a decision."""
        return self.significant and self.size > NEGLIGIBLE


def lack_of_fit(fit: Fit) -> Trend | None:
    """Test the residuals for a bend along N, D, C, R and E, or an interaction of N and D.

    A permutation test, which assumes no distribution: the residuals are shuffled among the rows or, where runs have
    several rows, keep their order and change sign run by run. Directions that the law itself can follow are removed
    first. None where the rows leave too few degrees of freedom.
    """
    jacobian = fit.linearised[1]
    names, features = _bends(fit.observations)
    if len(fit.residuals) - len(fit.free) < MIN_DEGREES or not names:
        return None
    basis = _orthonormal(jacobian)
    left = features - (features @ basis.T) @ basis
    testable = np.linalg.norm(left, axis=1) > 0.05 * np.linalg.norm(features, axis=1)
    if not testable.any():
        return None
    left = left[testable] / np.linalg.norm(left[testable], axis=1, keepdims=True)
    values = winsorised(fit.residuals, len(fit.free))
    values = values - (values @ basis.T) @ basis
    vectors = np.concatenate([left, basis])
    along = np.concatenate([(values @ vectors.T)[None, :], _randomised(values, vectors, fit.observations.run)])
    outside = values @ values - (along[:, len(left) :] ** 2).sum(axis=1)
    scores = along[:, : len(left)] ** 2 / np.maximum(outside, 1e-300)[:, None]
    tested = [name for name, use in zip(names, testable, strict=True) if use]
    # Each trend's own p-value among all data sets, over its share; the smallest is compared with that of the others.
    shares = (np.argsort(np.argsort(-scores, axis=0), axis=0) + 1) / [SHARES.get(name, 1.0) for name in tested]
    best = int(np.argmin(shares[0]))
    p_value = float(np.mean(shares.min(axis=1) <= shares[0, best] * (1 + 1e-9)))
    size = float(np.abs(left[best]).max() * abs(values @ left[best]))
    degrees = len(fit.residuals) - len(fit.free)
    level = next(level for least, level in SIGNIFICANT.items() if degrees >= least)
    return Trend(tested[best], size, p_value, level)


def _randomised(values: FloatArray, vectors: FloatArray, run: NDArray[np.str_]) -> FloatArray:
    """Return the products with ``vectors`` of data sets without a trend, made of the same residuals."""
    random, (_, which) = np.random.default_rng(0), np.unique(run, return_inverse=True)
    runs = int(which.max()) + 1
    if runs == len(values):
        return np.asarray(values[np.argsort(random.random((SHUFFLES, runs)), axis=1)] @ vectors.T)
    by_run = np.stack([np.bincount(which, row, runs) for row in vectors * values], axis=1)
    return np.asarray(random.choice([-1.0, 1.0], size=(SHUFFLES, runs)) @ by_run)


def _orthonormal(rows: FloatArray) -> FloatArray:
    """Return an orthonormal basis of the space that the rows span."""
    scaled = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-300)
    squares, directions = np.linalg.eigh(scaled @ scaled.T)  # a fifth of the time of an SVD of all rows
    spanned = squares > 1e-12 * squares[-1]
    return np.asarray((directions[:, spanned] / np.sqrt(squares[spanned])).T @ scaled)


def _bends(data: Observations) -> tuple[list[str], FloatArray]:
    """Return the candidate trends, centred: the square of each log axis with three levels, and N times D."""
    p = data.points
    axes = {"N": p.active, "D": p.tokens, "C": p.train_flops, "R": p.recurrence, "E": p.experts}
    scaled = {name: _scaled(np.log(values)) for name, values in axes.items() if len(np.unique(values)) > 2}
    bends = {name: values**2 for name, values in scaled.items()}
    if {"N", "D"} <= set(scaled):
        bends["N × D"] = scaled["N"] * scaled["D"]
    features = [values - values.mean() for values in bends.values()]
    return list(bends), np.array(features)


def _scaled(values: FloatArray) -> FloatArray:
    low, high = float(values.min()), float(values.max())
    return (2 * values - low - high) / (high - low)
