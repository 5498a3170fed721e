"""The search for the best optimum: descents from many starts, the best of them finished on all rows."""

from __future__ import annotations

from enum import Enum

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.fitting.descent import EXACT, Optima, descend, objective
from loopscale.fitting.noise import robust_scale
from loopscale.fitting.problem import Problem
from loopscale.fitting.starts import spread_rows, typical

ROUGH_ROWS = 120
HOPELESS = 30.0
"""A start whose squared error on some of the rows is this far above the best is not finished on all of them."""
FAR, FAR_DEVIATIONS, MOST_FAR = 0.2, 4.0, 0.1
"""Rows that a law misses by so much in ln loss and by so many robust deviations, if they are at most this share of the
rows, beyond two, are also left out of the descents by least squares. The objective itself counts them all."""


class Recipe(Enum):
    """How the law is fitted."""

    DEFAULT = "default"
    """Exact gradients, bounds, many starts; coefficients that have a prior are pulled towards it."""
    NO_PRIOR = "no-prior"
    """The same without priors."""
    PAPER = "paper"
    """The paper's own two stages with finite differences."""


def search(problem: Problem, starts_SP: FloatArray, delta: float) -> Optima:
    """Descend from every start; with a few diverged runs once more without them in the descents by least squares."""
    first = _search(problem, problem, starts_SP, delta)
    squares = without_far_rows(problem, first.u)
    if squares is problem:
        return first
    return min(first, _search(problem, squares, starts_SP, delta), key=lambda optima: optima.value)


def _search(problem: Problem, squares: Problem, starts_SP: FloatArray, delta: float) -> Optima:
    """Descend by least squares on some rows of ``squares`` first, then by the objective on all rows."""
    some = spread_rows(squares, max(ROUGH_ROWS, 8 * len(problem.free)))
    rough = _restarted(some, descend(some, starts_SP, tolerance=1e-4))
    basin_S, first_B = _basins(some, rough)
    hopeful_B = rough.value_S[first_B] <= HOPELESS * rough.value_S.min()
    u_BP = rough.u_SP[first_B]
    value_B = objective(problem, u_BP, problem.residuals(u_BP), delta)
    finished = finish(problem, u_BP[hopeful_B], delta, squares)
    u_BP[hopeful_B], value_B[hopeful_B] = finished.u_SP, finished.value_S
    return Optima(u_BP[basin_S], value_B[basin_S])


def finish(problem: Problem, u_SP: FloatArray, delta: float, squares: Problem) -> Optima:
    """Descend to the last digit from points near an optimum: least squares first, which forgives a worse start."""
    near = descend(squares, u_SP, tolerance=1e-3, patience=4, damping=1e-5)
    return descend(problem, near.u_SP, delta=delta, damping=1e-6)


def without_far_rows(problem: Problem, u: FloatArray) -> Problem:
    """Return the problem without the few rows that the law at ``u`` misses by far, the same problem if there are none.

    The square of one diverged run outweighs all other rows, and can bend a mapping until its gain is constant.
    """
    residual = np.abs(problem.residuals(u))
    far = (residual > FAR) & (residual > FAR_DEVIATIONS * robust_scale(residual, len(problem.free)))
    return problem.rows(~far) if 0 < far.sum() <= max(2, MOST_FAR * len(far)) else problem


def _restarted(problem: Problem, optima: Optima) -> Optima:
    """Descend once more from starts that ended above the best, with idle coefficients reset to typical values."""
    idle_SP = _idle(problem, optima)
    again = np.flatnonzero(idle_SP.any(axis=1) & (optima.value_S > 1.01 * optima.value_S.min()))
    if not len(again):
        return optima
    reset_SP = np.where(idle_SP, problem.point(typical(problem)), optima.u_SP)[again]
    second = descend(problem, reset_SP, tolerance=1e-4)
    lower = second.value_S < optima.value_S[again]
    optima.u_SP[again[lower]] = second.u_SP[lower]
    optima.value_S[again[lower]] = second.value_S[lower]
    return optima


def _idle(problem: Problem, optima: Optima) -> BoolArray:
    """Tell which coefficients are on a bound, or where moving them does nothing: on a plateau no descent moves them."""
    with np.errstate(all="ignore"):
        _, jacobian_SPR = problem.linearised(optima.u_SP)
        effect_SP = np.linalg.norm(jacobian_SPR, axis=2) * problem.width
    flat_SP = ~(effect_SP > 0.1 * np.sqrt(2 * optima.value_S)[:, None])
    return np.asarray(flat_SP | (optima.u_SP <= problem.lower) | (optima.u_SP >= problem.upper))


def _basins(problem: Problem, optima: Optima) -> tuple[IntArray, IntArray]:
    """Tell which optima predict the same, to 3% of the error: their index among the first of each kind."""
    residual_SR = problem.residuals(optima.u_SP)
    basin_S, first = np.empty(len(optima.u_SP), dtype=np.int64), list[int]()
    for k in np.argsort(optima.value_S, kind="stable").tolist():
        apart_B = ((residual_SR[first] - residual_SR[k]) ** 2).sum(axis=1)
        same_B = np.flatnonzero(apart_B <= 0.03**2 * 2 * optima.value_S[k] + EXACT)
        if not len(same_B):
            first.append(k)
        basin_S[k] = same_B[0] if len(same_B) else len(first) - 1
    return basin_S, np.array(first, dtype=np.int64)
