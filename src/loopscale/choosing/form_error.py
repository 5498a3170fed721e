"""How wrong a law's form may be: a random walk of ln loss along compute and tokens per parameter, beside the noise.

Beyond its data a law errs by more than its coefficients are uncertain. The walk W models that: ln loss is the law
plus W plus noise, and W gains the variance growth^2 in each decade of compute. Along tokens per parameter it is
another walk, which grows faster: a run is most informative about runs of the same ratio. What the law can follow of W
goes into its coefficients; the rest is the error of its form.
"""

from __future__ import annotations

import numpy as np

from loopscale.core.arrays import FloatArray, IntArray
from loopscale.fitting import Fit, Noise
from loopscale.scaling import Points

TYPICAL_GROWTH, SPREAD = 0.006, 1.0
"""Prior of the growth, and the standard deviation of its logarithm. On eight public sweeps whose top half, one and one
and a half decades were hidden in turn, it makes the errors that are announced 1.06 times the real ones on average."""
ACROSS = 5.0
"""Growth along tokens per parameter, as a multiple of that along compute."""
NOISE_SPREAD = 0.7
"""Standard deviation of the logarithm of the noise about what the residuals say."""
GROWTHS = np.geomspace(2e-4, 0.2, 41)
NOISES = np.exp(np.linspace(-2.1, 2.1, 22))
MOST_ROWS = 600
"""Rows that the estimate takes, evenly along compute: their matrix is decomposed once."""


def form_growth(fit: Fit, noise: Noise) -> float:
    """Estimate the growth of the walk per root decade: the root mean square of its posterior.

    The likelihood is that of the residuals' part that the coefficients cannot follow (restricted likelihood), averaged
    over the noise.
    """
    residuals, jacobian = fit.linearised
    rows = _rows(fit)
    decades = places(fit.observations.points)[rows]
    decades = decades - decades.min(axis=0)
    run = fit.observations.run[rows]
    shared = (run[:, None] == run[None, :]) * noise.run**2
    root = np.linalg.inv(np.linalg.cholesky(np.eye(len(rows)) * noise.observation**2 + shared))
    white = root @ jacobian[:, rows].T
    basis = np.linalg.qr(white, mode="complete")[0][:, np.linalg.matrix_rank(white) :]
    if not basis.shape[1]:
        return TYPICAL_GROWTH
    walk = basis.T @ root @ covariance(decades, decades) @ root.T @ basis
    values, vectors = np.linalg.eigh(walk)
    along = (vectors.T @ basis.T @ root @ residuals[rows]) ** 2
    variance = NOISES[:, None, None] ** 2 + GROWTHS[None, :, None] ** 2 * np.maximum(values, 0.0)
    likelihood = -0.5 * np.sum(np.log(variance) + along / variance, axis=2)
    likelihood -= 0.5 * (np.log(NOISES) / NOISE_SPREAD)[:, None] ** 2
    posterior = likelihood - 0.5 * (np.log(GROWTHS / TYPICAL_GROWTH) / SPREAD) ** 2
    weight = np.exp(posterior - posterior.max()).sum(axis=0)
    return float(np.sqrt(weight @ GROWTHS**2 / weight.sum()))


def _rows(fit: Fit) -> IntArray:
    order = np.argsort(fit.observations.points.train_flops, kind="stable")
    order = order[fit.sound[order]]
    taken = np.unique(np.linspace(0, len(order) - 1, min(len(order), MOST_ROWS)).round().astype(np.int64))
    return np.asarray(order[taken], dtype=np.int64)


def places(points: Points) -> FloatArray:
    """Return where points lie for the walk: decades of compute and of tokens per parameter, (n, 2)."""
    ratio = np.log10(points.tokens / points.active)
    return np.stack(np.broadcast_arrays(np.log10(points.train_flops), ratio), axis=1)


def covariance(x_n2: FloatArray, y_m2: FloatArray) -> FloatArray:
    """Return the covariance of the walk between two sets of places above the least of all, (n, m), for growth 1."""
    along, across = (np.minimum.outer(x_n2[:, k], y_m2[:, k]) for k in range(2))
    return np.asarray(along + ACROSS**2 * across)
