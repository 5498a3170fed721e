"""Covariance of fitted coefficients, and intervals over resampled laws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.scaling import tails

if TYPE_CHECKING:
    from loopscale.fitting.result import Fit


def coefficient_intervals(fit: Fit, level: float = 0.9) -> dict[str, tuple[float, float]]:
    """Return each coefficient's percentile interval over the resampled laws; a fixed one has no width."""
    if fit.resamples is None:
        raise InputError(
            "there are no resampled laws", where=fit.name, remedy="fit with `resamples` 100, or call fit.resample()"
        )
    low, high = np.quantile(fit.resamples, tails(level), axis=0).tolist()
    return {name: (low[k], high[k]) for k, name in enumerate(fit.problem.names)}


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
        variances = np.maximum(np.diag(self.robust), 0.0)  # a nearly singular one may round to less than zero
        return dict(zip(self.names, np.sqrt(variances).tolist(), strict=True))

    @property
    def correlation(self) -> FloatArray:
        """How the coefficients' errors go together; zero for one that has no effect on any row."""
        deviation = np.sqrt(np.maximum(np.diag(self.inverse), 0.0))
        scale = np.outer(deviation, deviation)
        return np.asarray(np.divide(self.inverse, scale, out=np.zeros_like(self.inverse), where=scale > 0))


def fit_covariance(fit: Fit) -> Covariance:
    """Return the covariance of the fit's free coefficients, but those on a bound."""
    problem, delta, held = fit.problem, fit.delta, set(fit.at_bound)
    keep = np.array([name not in held for name in problem.free_names], dtype=bool)
    residuals, jacobian = fit.linearised
    weight = np.ones(len(residuals)) if problem.weight is None else problem.weight
    jacobian = jacobian[keep]
    # The share of rows within delta replaces the curvature of each: smoother than counting just those rows.
    inner = max(float(np.mean(np.abs(residuals) <= delta)), 1.0 / len(residuals))
    inverse = _inverse(inner * (jacobian * weight) @ jacobian.T)
    scores, runs = _by_run(jacobian * weight * np.clip(residuals, -delta, delta), fit.observations.run)
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
