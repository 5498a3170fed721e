"""What to look at before a fitted law is believed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loopscale.arrays import BoolArray, FloatArray
from loopscale.errors import InputError, nearest, shown
from loopscale.fit.data.read import Observations
from loopscale.fit.degeneracy import Covariance, covariance, robust_deviation
from loopscale.fit.fitting import Fit
from loopscale.fit.problem import Problem
from loopscale.fit.resample import problem_of
from loopscale.fit.solver import descend, side_by_side, typical
from loopscale.laws import AXES
from loopscale.tables import Table

UNIDENTIFIED = 0.25
"""A coefficient whose standard error is this part of its whole search range is not identified."""
OUTLYING = 5.0
"""Residuals beyond so many robust standard deviations are outliers."""
LEVELS = 8
"""Axes with more values than this are cut into so many parts of equal size."""
NEUTRAL = ("delta", "gamma", "omega", "zeta", "theta", "theta1", "theta2")
"""Coefficients whose value 0 means that the effect is absent."""


def residuals_by_axis(fit: Fit) -> Table:
    """Return mean and spread of the residuals (ln predicted - ln observed) along size, tokens, experts, recurrence."""
    points = fit.observations.points
    values = (points.active, points.tokens, points.experts, points.recurrence)
    residuals = fit.residuals
    records = []
    for axis, along in zip(AXES, values, strict=True):
        for low, high, here in _parts(along):
            part = residuals[here]
            records.append(
                {"axis": axis, "from": low, "to": high, "rows": len(part), "mean": float(part.mean()),
                 "rms": float(np.sqrt(np.mean(part**2))), "worst": float(part[np.argmax(np.abs(part))])}
            )  # fmt: skip
    return Table.from_records(records)


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
    problem, errors = problem_of(fit), fit_covariance(fit).errors
    best, records = problem.point(fit.law.coefficients), []
    for k, name in enumerate(fit.free):
        share = errors.get(name, np.nan) / problem.width[k]
        held_at, objective, moved = _held(problem, fit, best, k)
        ratio = objective / fit.objective if fit.objective > 0 else np.nan
        records.append(
            {"coefficient": name, "value": fit.law.coefficients[name], "share": float(share),
             "on_bound": name in fit.at_bound, "identified": bool(share <= UNIDENTIFIED),
             "held_at": held_at, "objective": ratio, "moved": moved}
        )  # fmt: skip
    return Table.from_records(records)


def unidentified(fit: Fit) -> tuple[str, ...]:
    """Return the coefficients that the data leave open, those on a bound aside."""
    problem, errors = problem_of(fit), fit_covariance(fit).errors
    wide = zip(fit.free, problem.width, strict=True)
    return tuple(name for name, width in wide if name in errors and errors[name] > UNIDENTIFIED * width)


def outliers(fit: Fit, beyond: float = OUTLYING) -> Table:
    """Return the rows (from 1) whose residual is beyond so many robust standard deviations, worst first."""
    residuals = fit.residuals
    deviations = residuals / max(robust_deviation(residuals), 1e-300)
    worst = np.argsort(-np.abs(deviations), kind="stable")
    rows = [k for k in worst.tolist() if abs(deviations[k]) > beyond]
    return Table({
        "row": [k + 1 for k in rows],
        "run": [str(fit.observations.run[k]) for k in rows],
        "residual": [float(residuals[k]) for k in rows],
        "deviations": [float(deviations[k]) for k in rows],
    })  # fmt: skip


def run_share(fit: Fit) -> float:
    """Return the share of the residuals' variance that rows of one run have in common (intraclass correlation)."""
    names, which, sizes = np.unique(fit.observations.run, return_inverse=True, return_counts=True)
    rows, groups = len(which), len(names)
    if groups < 2 or rows == groups:
        return 0.0
    residuals = fit.residuals - fit.residuals.mean()
    means = np.bincount(which, residuals) / sizes
    between = float(sizes @ means**2) / (groups - 1)
    within = float(np.sum((residuals - means[which]) ** 2)) / (rows - groups)
    typical_size = (rows - float(sizes @ sizes) / rows) / (groups - 1)
    return float(np.clip((between - within) / max(between + (typical_size - 1) * within, 1e-300), 0.0, 1.0))


def mid_schedule(data: Observations) -> int:
    """Return how many rows are known not to be final losses."""
    return 0 if data.finished is None else int((~data.finished).sum())


def fitted_span(fit: Fit) -> Table:
    """Return the range of each axis; beyond it the law extrapolates."""
    spans = [(axis, *getattr(fit.law.fitted_range, axis)) for axis in AXES]
    return Table.from_records([{"axis": axis, "from": low, "to": high} for axis, low, high in spans])


def warnings(fit: Fit) -> tuple[str, ...]:
    """Return what a reader of the fit must know, each in a sentence."""
    data, found = fit.observations, [f"degenerate: {reason}" for reason in fit.degenerate]
    if fit.at_bound:
        found.append(f"on a bound: {', '.join(f'{n} = {fit.law.coefficients[n]:.4g}' for n in fit.at_bound)}")
    if open_ones := unidentified(fit):
        found.append(
            f"not identified by these data: {', '.join(open_ones)}; predictions inside the range do not need them"
        )
    if mid_schedule(data):
        found.append(f"{mid_schedule(data)} of {len(data)} rows are in mid-schedule; their losses are not final")
    if len(far := outliers(fit)):
        found.append(f"{len(far)} outliers beyond {OUTLYING:g} deviations, the worst in row {far.columns['row'][0]}")
    if not fit.law.outer.uses_experts and np.ptp(data.points.experts) > 0:
        found.append("E varies in the data, but the law does not know experts")
    if fit.law.mapping.name == "none" and data.points.recurrence.max() > 1:
        found.append("some rows have R > 1, but the law does not know recurrence")
    if fit.agreeing < fit.starts:
        found.append(f"{fit.starts - fit.agreeing} of {fit.starts} starts ended above the best objective")
    return tuple(found)


def fit_covariance(fit: Fit) -> Covariance:
    """Return the covariance of the fit's free coefficients."""
    problem = problem_of(fit)
    return covariance(problem, problem.point(fit.law.coefficients), fit.delta, fit.observations.run)


def _parts(values: FloatArray) -> list[tuple[float, float, BoolArray]]:
    """Cut an axis into its levels, or into groups of neighbouring levels where there are many."""
    levels = np.unique(values)
    groups = np.array_split(levels, min(LEVELS, len(levels)))
    spans = [(float(group[0]), float(group[-1])) for group in groups]
    return [(low, high, (values >= low) & (values <= high)) for low, high in spans]


def _held(problem: Problem, fit: Fit, best: FloatArray, k: int) -> tuple[float, float, float]:
    """Refit with one coefficient held; return where, the objective, and the largest move of a prediction in nats."""
    name, held = fit.free[k], np.arange(len(best)) == k
    value = 0.0 if name in NEUTRAL else typical(problem)[name]
    u = np.where(held, problem.point({**fit.law.coefficients, name: value}), best)
    smaller = problem.holding(held, u)
    ends = side_by_side(smaller, u[~held][None, :], delta=fit.delta, tolerance=1e-9)
    residuals = smaller.residuals(ends.u_SP[0])
    moved = np.abs(np.expm1(residuals - problem.residuals(best))) * np.exp(problem.residuals(best) + problem.log_loss)
    return smaller.coefficients(ends.u_SP[0])[name], float(ends.value_S[0]), float(moved.max())


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


def profile(fit: Fit, coefficient: str, *, level: float = 0.9) -> Profile:
    """Move one coefficient both ways, refit all others at each place, and read off its interval.

    Unlike resampling this sees a lopsided or open-ended range. The scale of the likelihood comes from the scatter
    between runs (Chandler & Bate 2007), so points along one run do not count as independent.
    """
    from scipy.special import stdtrit  # Student's t; slow to import, and only profiles use it

    problem = problem_of(fit)
    if coefficient not in fit.free:
        raise InputError(
            f"coefficient {shown(coefficient)} was not varied{nearest(coefficient, fit.free)}; "
            f"choose from {', '.join(fit.free)}"
        )
    if not 0 < level < 1:
        raise InputError(f"level is {level}; it should lie between 0 and 1, as 0.9")
    which, best = fit.free.index(coefficient), problem.point(fit.law.coefficients)
    errors = covariance(problem, best, fit.delta, fit.observations.run)
    scale, step = _scale(errors.names, errors.inverse, errors.robust, coefficient, problem.width[which])
    limit = float(stdtrit(max(errors.runs - 1, 1), (1 + level) / 2) ** 2)
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
    if coefficient not in names:  # on a bound: no curvature of its own, so the typical ratio serves
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
        moved = problem.holding(held, u)
        ends = descend(moved, u[~held][None, :], delta=fit.delta, tolerance=1e-9, damping=1e-6)
        u[~held] = ends.u_SP[0]
        rise = max(float(ends.value_S[0]) - fit.objective, 0.0)
        yield float(u[which]), float(ends.value_S[0]), 2 * rise * scale
        if 2 * rise * scale > 1.5 * limit:
            return


def _crossing(side: list[tuple[float, float, float]], limit: float) -> tuple[float, bool]:
    """Return where the statistic reaches its limit, or the last place and that it did not."""
    for (u0, _, s0), (u1, _, s1) in pairwise(side):
        if s1 >= limit > s0:
            part = (np.sqrt(limit) - np.sqrt(s0)) / (np.sqrt(s1) - np.sqrt(s0))  # the root is nearly straight
            return u0 + float(part) * (u1 - u0), False
    return side[-1][0], True
