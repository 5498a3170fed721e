"""What the data say about each coefficient: correlations, the cost of fixing it, and its likelihood profile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.numerics import student_quantile
from loopscale.core.tables import Table
from loopscale.fitting.covariance import fit_covariance
from loopscale.fitting.degeneracy import undetermined
from loopscale.fitting.descent import descend, side_by_side
from loopscale.fitting.problem import Problem
from loopscale.fitting.starts import typical
from loopscale.fitting.warnings import UNIDENTIFIED

if TYPE_CHECKING:
    from loopscale.fitting.result import Fit


def correlations(fit: Fit) -> Table:
    """Return the correlation of every pair of coefficients, from the exact Jacobian; the strongest first."""
    errors = fit_covariance(fit)
    matrix = errors.correlation
    pairs = [
        {"first": first, "second": errors.names[j], "correlation": float(matrix[i, j])}
        for i, first in enumerate(errors.names)
        for j in range(i + 1, len(errors.names))
    ]
    return Table.from_records(sorted(pairs, key=lambda pair: -abs(float(str(pair["correlation"])))))


def identification(fit: Fit) -> Table:
    """Return how well the data determine each coefficient, and what holding it costs.

    ``share`` is the standard error as a part of the search range. Held at ``held_at`` (0 for an effect that can be
    absent, else a typical value), the refitted objective is ``objective`` times the fit's and no prediction moves by
    more than ``moved`` nats.
    """
    problem, errors = fit.problem, fit_covariance(fit).errors
    best, records = fit.optimum, []
    together = {name for group in undetermined(problem, best, fit.delta) for name in group}
    for k, name in enumerate(fit.free):
        share = errors.get(name, np.nan) / problem.width[k]
        held_at, objective, moved = _held(problem, fit, best, k)
        ratio = objective / fit.objective if fit.objective > 0 else np.nan
        records.append(
            {"coefficient": name, "value": fit.coefficients[name], "share": float(share),
             "on_bound": name in fit.at_bound, "identified": bool(share <= UNIDENTIFIED) and name not in together,
             "held_at": held_at, "objective": ratio, "moved": moved}
        )  # fmt: skip
    return Table.from_records(records)


def _held(problem: Problem, fit: Fit, best: FloatArray, k: int) -> tuple[float, float, float]:
    """Refit with one coefficient held; return where, the objective, and the largest move of a prediction in nats."""
    name, held = fit.free[k], np.arange(len(best)) == k
    neutral = problem.terms[name].neutral
    value = typical(problem)[name] if neutral is None else neutral
    u = np.where(held, problem.point({**fit.coefficients, name: value}), best)
    smaller = problem.with_fixed(held, u)
    optima = side_by_side(smaller, u[~held][None, :], delta=fit.delta, tolerance=1e-9)
    residuals = smaller.residuals(optima.u_SP[0])
    moved = np.abs(np.expm1(residuals - problem.residuals(best))) * np.exp(problem.residuals(best) + problem.log_loss)
    return smaller.coefficients(optima.u_SP[0])[name], float(optima.value_S[0]), float(moved.max())


MOST_STEPS = 40
"""Steps on either side; each is a third of a standard error and grows."""


@dataclass(frozen=True, eq=False)
class Profile:
    """The profile of one coefficient and the interval read off it."""

    coefficient: str
    values: FloatArray
    objective: FloatArray
    statistic: FloatArray
    """Likelihood ratio, scaled so that its curvature is that of the error over runs; about chi-squared with 1."""
    low: float
    high: float
    level: float
    runs: int
    """Clusters that the scale comes from."""
    open: tuple[bool, bool]
    """Whether the interval runs into the lower and the upper bound."""

    def table(self) -> Table:
        """Return one row for each value."""
        columns = {"value": self.values, "objective": self.objective, "statistic": self.statistic}
        return Table({name: column.tolist() for name, column in columns.items()})


def likelihood_profile(fit: Fit, coefficient: str, *, level: float = 0.9) -> Profile:
    """Move one coefficient both ways, refit all others at each place, and read off its interval.

    Unlike resampling this sees a lopsided or open-ended range. The scale of the likelihood comes from the scatter
    between runs (Chandler & Bate 2007), so points along one run do not count as independent.
    """
    problem = fit.problem
    if coefficient not in fit.free:
        raise InputError(
            f"coefficient {shown(coefficient)} was not varied{nearest(coefficient, fit.free)}",
            remedy=f"choose from {', '.join(fit.free)}",
        )
    if not 0 < level < 1:
        raise InputError(f"`level` is {level}", remedy="it should lie between 0 and 1, as 0.9")
    which, best = fit.free.index(coefficient), fit.optimum
    errors = fit_covariance(fit)
    scale, step = _scale(errors.names, errors.inverse, errors.robust, coefficient, problem.width[which])
    limit = student_quantile(level, max(errors.runs - 1, 1)) ** 2
    sides = [list(_side(problem, fit, best, which, sign * step, scale, limit)) for sign in (-1.0, 1.0)]
    places = [*reversed(sides[0]), (float(best[which]), fit.objective, 0.0), *sides[1]]
    u, objective, statistic = (np.array(column) for column in zip(*places, strict=True))
    ends = [_crossing([(float(best[which]), fit.objective, 0.0), *side], limit) for side in sides]
    back = np.exp if problem.logarithmic[which] else np.asarray
    low, high = (float(back(end)) for end, _ in ends)
    opened = (ends[0][1], ends[1][1])
    return Profile(coefficient, back(u), objective, statistic, low, high, level, errors.runs, opened)


def _scale(
    names: tuple[str, ...], inverse: FloatArray, robust: FloatArray, coefficient: str, width: float
) -> tuple[float, float]:
    """Return what turns twice the rise of the objective into a chi-squared, and a third of a standard error."""
    if coefficient not in names:  # on a bound: no curvature, so the typical ratio serves
        ratios = np.diag(inverse) / np.maximum(np.diag(robust), 1e-300)
        return float(np.median(ratios)) if len(ratios) else 1.0, width / 100
    k = names.index(coefficient)
    error = float(np.sqrt(robust[k, k]))
    return float(inverse[k, k] / max(robust[k, k], 1e-300)), min(error / 3, width / 20) or width / 100


def _side(
    problem: Problem, fit: Fit, best: FloatArray, which: int, step: float, scale: float, limit: float
) -> Iterator[tuple[float, float, float]]:
    """Walk away from the optimum until the statistic is well above its limit or the range ends."""
    held = np.arange(len(best)) == which
    u = best.copy()
    for k in range(MOST_STEPS):
        last = u[which]
        u[which] = np.clip(last + step * 1.1**k, problem.lower[which], problem.upper[which])
        if u[which] == last:
            return
        moved = problem.with_fixed(held, u)
        optima = descend(moved, u[~held][None, :], delta=fit.delta, tolerance=1e-9, damping=1e-6)
        u[~held] = optima.u_SP[0]
        rise = max(float(optima.value_S[0]) - fit.objective, 0.0)
        yield float(u[which]), float(optima.value_S[0]), 2 * rise * scale
        if 2 * rise * scale > 1.5 * limit:
            return


def _crossing(side: list[tuple[float, float, float]], limit: float) -> tuple[float, bool]:
    """Return where the statistic reaches its limit, or the last place and that it did not."""
    for (u0, _, s0), (u1, _, s1) in pairwise(side):
        if s1 >= limit > s0:
            part = (np.sqrt(limit) - np.sqrt(s0)) / (np.sqrt(s1) - np.sqrt(s0))  # the root is nearly straight
            return u0 + float(part) * (u1 - u0), False
    return side[-1][0], True
