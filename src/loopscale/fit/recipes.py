"""The paper's own procedure, as the baseline that the default is measured against.

Stage 1 fits the base law to the rows with R = 1, stage 2 all coefficients to all rows. Each stage is scipy's
``curve_fit`` on squared error, then L-BFGS-B on log-Huber, both with finite differences. The objective is the sum of
the Huber terms (their mean stops L-BFGS-B ten percent above the optimum) as a part of its value at the start: scipy's
tolerance is relative to the objective or to one, whichever is larger, and the bare sum, about 1e-3, stops early too.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from loopscale.arrays import FloatArray
from loopscale.fit.problem import Problem
from loopscale.fit.solver import Ends, huber
from loopscale.laws.mappings import NoGain


def paper_recipe(problem: Problem, start: FloatArray, delta: float) -> Ends:
    """Return where the paper's procedure ends from one start, given in search coordinates."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # curve_fit warns of a covariance that is not used
        plain = _plain(problem)
        x = problem.vectors(start)[problem.free]
        once, base = problem.R == 1, problem.base
        if not isinstance(problem.mapping, NoGain) and base.any() and once.sum() > base.sum():
            x[base] = _stage(plain.rows(once).holding(~base, x), x[base], delta)
        x = _stage(plain, x, delta)
        u = problem.point(dict(zip(problem.free_names, x.tolist(), strict=True)))
        return Ends(u[None, :], huber(problem.residuals(u), delta)[None])


def _stage(problem: Problem, x: FloatArray, delta: float) -> FloatArray:
    from scipy.optimize import Bounds, curve_fit, minimize  # half a second, which only this recipe should cost

    box, loss, unit = (problem.lower, problem.upper), np.exp(problem.log_loss), 1.0

    def predicted(_: FloatArray, *values: float) -> FloatArray:
        return np.asarray(np.exp(problem.residuals(np.array(values))) * loss)

    def objective(values: FloatArray) -> float:
        return float(huber(problem.residuals(values), delta)) / unit

    # Where it does not converge or meets something that is not a number, the second step goes on from the start.
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
