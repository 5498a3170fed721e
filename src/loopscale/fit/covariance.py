"""What the Jacobian at the optimum says about the coefficients' errors, rows of one run taken together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loopscale.arrays import FloatArray
from loopscale.fit.degeneracy import coefficients_at_bound
from loopscale.fit.problem import Problem


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
        return dict(zip(self.names, np.sqrt(np.diag(self.robust)).tolist(), strict=True))

    @property
    def correlation(self) -> FloatArray:
        """How the coefficients' errors go together."""
        deviation = np.sqrt(np.diag(self.inverse))
        return np.asarray(self.inverse / np.outer(deviation, deviation))


def covariance(problem: Problem, u: FloatArray, delta: float, run: NDArray[np.str_]) -> Covariance:
    """Return the covariance of a Huber fit at its optimum ``u``."""
    held = set(coefficients_at_bound(problem, u))
    keep = np.array([name not in held for name in problem.free_names], dtype=bool)
    residuals, jacobian = problem.linearised(u)
    jacobian = jacobian[keep]
    # The share of rows within delta stands for the curvature of each: smoother than counting just those rows.
    inner = max(float(np.mean(np.abs(residuals) <= delta)), 1.0 / len(residuals))
    inverse = _inverse(inner * jacobian @ jacobian.T)
    scores, runs = _by_run(jacobian * np.clip(residuals, -delta, delta), run)
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
