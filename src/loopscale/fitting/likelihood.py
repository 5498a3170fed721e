"""What the data say about each coefficient: correlations, the cost of fixing it, and its likelihood profile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.numerics import student_quantile
from loopscale.core.tables import Table
from loopscale.fitting.covariance import fit_covariance
from loopscale.fitting.degeneracy import undetermined
from loopscale.fitting.descent import descend
from loopscale.fitting.problem import Problem
from loopscale.fitting.starts import typical
from loopscale.fitting.warnings import UNIDENTIFIED
from loopscale.scaling import tails

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
    optima = descend(smaller, u[~held][None, :], delta=fit.delta, tolerance=1e-9)
    residuals = smaller.residuals(optima.u_SP[0])
    moved = np.abs(np.expm1(residuals - problem.residuals(best))) * np.exp(problem.residuals(best) + problem.log_loss)
    return smaller.coefficients(optima.u_SP[0])[name], float(optima.value_S[0]), float(moved.max())


MOST_STEPS = 40
"""Steps on either side; each is a third of a standard deviation and grows."""
REFITS = 100
"""Refits that scale the profile of a fit without resampled laws."""
WIDE = NormalDist().inv_cdf(0.95)
"""Standard deviations from the estimate at which the profile is made to agree with the refits."""


@dataclass(frozen=True, eq=False)
class Profile:
    """The profile of one coefficient and the interval read off it."""

    coefficient: str
    values: FloatArray
    objective: FloatArray
    statistic: FloatArray
    """Likelihood ratio, scaled so that its width is that of refits on resampled runs; about chi-squared with 1."""
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

    Unlike resampling this sees a lopsided or open-ended range. Its scale is that of refits on resampled runs: a Huber
    fit has no likelihood, and the sandwich of its derivatives covered 58 to 86% at a nominal 90%. That of a
    coefficient on a bound is the sandwich's.
    """
    problem = fit.problem
    if coefficient not in fit.free:
        raise InputError(
            f"coefficient {shown(coefficient)} was not varied{nearest(coefficient, fit.free)}",
            remedy=f"choose from {', '.join(fit.free)}",
        )
    tails(level)  # which refuses a level that is no share
    which, best, runs = fit.free.index(coefficient), fit.optimum, len(fit.observations.runs)
    limit, start = student_quantile(level, max(runs - 1, 1)) ** 2, (float(best[which]), fit.objective, 0.0)

    def walked(step: float, reach: float, rise: float) -> list[list[tuple[float, float, float]]]:
        return [[start, *_side(problem, fit, best, which, sign * step, reach, rise)] for sign in (-1.0, 1.0)]

    errors = fit_covariance(fit)
    if coefficient in errors.names:
        deviation = _deviation(fit, coefficient, which)
        step = min(deviation / 3, problem.width[which] / 20) or problem.width[which] / 100
        sides = walked(step, 3 * deviation * max(WIDE, float(np.sqrt(limit))), np.inf)
        scale = _scale(sides, deviation)
    else:  # on a bound refits pile up there, and their spread says nothing: the typical ratio of the errors serves
        ratios = np.diag(errors.inverse) / np.maximum(np.diag(errors.robust), 1e-300)
        scale = float(np.median(ratios)) if len(ratios) else 1.0
        sides = walked(problem.width[which] / 100, np.inf, 1.5 * limit / scale)
    sides = [[(u, objective, rise * scale) for u, objective, rise in side] for side in sides]
    u, objective, statistic = (np.array(column) for column in zip(*reversed(sides[0]), *sides[1][1:], strict=True))
    ends = [_crossing(side, limit) for side in sides]
    back = np.exp if problem.logarithmic[which] else np.asarray
    low, high = (float(back(end)) for end, _ in ends)
    return Profile(coefficient, back(u), objective, statistic, low, high, level, runs, (ends[0][1], ends[1][1]))


def _deviation(fit: Fit, coefficient: str, which: int) -> float:
    """Return the standard deviation of a coefficient over refits on resampled runs, in search coordinates."""
    resampled = fit if fit.resamples is not None else fit.resample(REFITS, seed=fit.seed)
    assert resampled.resamples is not None
    drawn = resampled.resamples[:, resampled.problem.names.index(coefficient)]
    if fit.problem.logarithmic[which]:
        drawn = np.log(drawn)
    low, high = np.quantile(drawn, (0.05, 0.95))
    return float(high - low) / (2 * WIDE)


def _scale(sides: list[list[tuple[float, float, float]]], deviation: float) -> float:
    """Return what makes the rise so many deviations from the estimate, over both sides, that of a normal error."""
    rises = []
    for side in sides:
        away = np.abs(np.array([u for u, _, _ in side]) - side[0][0])
        if len(side) > 1 and away[-1] >= WIDE * deviation > 0:
            roots = np.sqrt([rise for _, _, rise in side])
            rises.append(float(np.interp(WIDE * deviation, away, roots)) ** 2)
    if not rises or max(rises) <= 0:  # the refits spread over the whole range: nothing is known of it
        return 0.0
    return WIDE**2 / float(np.mean(rises))


def _side(
    problem: Problem, fit: Fit, best: FloatArray, which: int, step: float, reach: float, enough: float
) -> Iterator[tuple[float, float, float]]:
    """Walk away from the optimum until well beyond the interval, by distance or by rise, or the range ends."""
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
        rise = 2 * max(float(optima.value_S[0]) - fit.objective, 0.0)
        yield float(u[which]), float(optima.value_S[0]), rise
        if abs(u[which] - best[which]) > reach or rise > enough:
            return


def _crossing(side: list[tuple[float, float, float]], limit: float) -> tuple[float, bool]:
    """Return where the statistic reaches its limit, or the last place and that it did not."""
    for (u0, _, s0), (u1, _, s1) in pairwise(side):
        if s1 >= limit > s0:
            part = (np.sqrt(limit) - np.sqrt(s0)) / (np.sqrt(s1) - np.sqrt(s0))  # the root is nearly straight
            return u0 + float(part) * (u1 - u0), False
    return side[-1][0], True
