"""What to look at before a fitted law is believed."""

from __future__ import annotations

import numpy as np

from loopscale.arrays import BoolArray, FloatArray
from loopscale.fit.covariance import Covariance, covariance
from loopscale.fit.degeneracy import robust_deviation
from loopscale.fit.observations import Observations
from loopscale.fit.problem import Problem
from loopscale.fit.result import Fit
from loopscale.fit.search import side_by_side
from loopscale.fit.starts import typical
from loopscale.fit.uncertainty import problem_of
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
