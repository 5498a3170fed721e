"""The paper's own procedure: curve_fit, then L-BFGS-B with finite differences, first on R = 1 and then on all rows."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.fitting.descent import Optima, huber
from loopscale.fitting.problem import Problem


def paper_recipe(problem: Problem, starts_SP: FloatArray, delta: float) -> Optima:
    """Return where the paper's procedure ends from its one start, given in search coordinates."""
    (start,) = starts_SP
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # curve_fit warns of a covariance that is not used
        plain = _plain(problem)
        x = problem.vectors(start)[problem.free]
        once, base = problem.R == 1, problem.base
        if problem.mapping.loops and base.any() and once.sum() > base.sum():
            x[base] = _stage(plain.rows(once).with_fixed(~base, x), x[base], delta)
        x = _stage(plain, x, delta)
        u = problem.point(dict(zip(problem.free_names, x.tolist(), strict=True)))
        return Optima(u[None, :], huber(problem.residuals(u), delta)[None])


def _stage(problem: Problem, x: FloatArray, delta: float) -> FloatArray:
    from scipy.optimize import Bounds, curve_fit, minimize  # half a second, which only this recipe should cost

    box, loss, unit = (problem.lower, problem.upper), np.exp(problem.log_loss), 1.0

    def predicted(_: FloatArray, *values: float) -> FloatArray:
        return np.asarray(np.exp(problem.residuals(np.array(values))) * loss)

    def objective(values: FloatArray) -> float:
        return float(huber(problem.residuals(values), delta)) / unit

    # Where it does not converge or a value is not a number, the second step continues from the start.
    with suppress(RuntimeError, ValueError):
        x = curve_fit(predicted, problem.log_loss, loss, p0=x, bounds=box)[0]
    unit = float(huber(problem.residuals(x), delta)) or 1.0
    # Enough trials for the tolerance, not a count, to end the descent.
    options: Any = {"maxiter": 5_000, "maxfun": 200_000}
    return np.asarray(minimize(objective, x, method="L-BFGS-B", bounds=Bounds(*box), options=options).x)


def _plain(problem: Problem) -> Problem:
    """Return the problem in the coefficients themselves, none in logarithm."""
    lower, upper = (problem.vectors(u)[problem.free] for u in (problem.lower, problem.upper))
    return replace(problem, logarithmic=np.zeros(len(problem.free), dtype=bool), lower=lower, upper=upper)
