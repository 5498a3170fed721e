"""What a reader must know before believing a fit: degenerate laws, outliers, and other warnings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from loopscale.arrays import BoolArray, FloatArray
from loopscale.fit.data.read import Observations
from loopscale.fit.problem import Problem
from loopscale.fit.solver import SearchResult
from loopscale.fit.uncertainty import fit_covariance
from loopscale.laws import AXES, effective_experts
from loopscale.laws.forms import Role, Term
from loopscale.tables import Table

if TYPE_CHECKING:
    from loopscale.fit.fitting import Fit

FLAT = 1.0
"""A direction along which one standard error spans this many widths of the box is not determined at all."""
STANDARD = ("alpha", "beta")
"""Exponents of a term that is a plain power of N or D."""
STILL = 0.02
"""A term that changes by less than this part over all the data is a constant, which c already is."""


def why_degenerate(
    problem: Problem, best: SearchResult, delta: float, data: Observations, bounded: set[str]
) -> tuple[str, ...]:
    """Return the reasons for which the coefficients mean nothing; none for a sound fit.

    ``bounded`` names coefficients whose bounds are the user's own: those may well be on them.
    """
    c = problem.coefficients(best.u)
    at_bound = [name for name in problem.at_bound(best.u) if name not in bounded]
    reasons = [
        *_runaways(problem, c, at_bound),
        *_still_terms(problem, c),
        *_experts(problem, c, data),
        *_flat(problem, best.u, delta),
        *_starts(best),
        *_tokens(problem, data),
    ]
    return tuple(reasons)


def _runaways(problem: Problem, c: dict[str, float], at_bound: list[str]) -> Iterator[str]:
    edge = [problem.terms[name] for name in at_bound]
    main = [f"{term.name} = {c[term.name]:.4g}" for term in edge if term.term in (Term.SIZE, Term.DATA)]
    if main:
        yield f"{', '.join(main)} ended on the edge of the search range: the term diverged"
    powers = [term.name for term in problem.form.coefficients if term.term in (Term.SIZE, Term.DATA)
              and term.role is Role.EXPONENT]  # fmt: skip
    for name in (term.name for term in edge if term.term is Term.IRREDUCIBLE and powers):
        weakest = min(powers, key=lambda power: abs(c[power]))
        yield (
            f"{name} ended on its bound {c[name]:.4g}: the data show no irreducible loss, and a slow power "
            f"({weakest} = {c[weakest]:.3g}) takes its place, as happens with losses in mid-schedule"
        )
    if len(gain := [term.name for term in edge if term.term is Term.RECURRENCE and term.positive]) > 1:
        yield f"{' and '.join(gain)} ended on their bounds: the gain from looping does not saturate in these data"


def _still_terms(problem: Problem, c: dict[str, float]) -> Iterator[str]:
    x = np.log(effective_experts(problem.E, c["E_start"], c["E_max"])) if "E_start" in c else 0.0
    slopes = ((Term.SIZE, "gamma", problem.N, "parameter"), (Term.DATA, "zeta", problem.D, "data"))
    for kind, bend, values, term in slopes:
        own = [k.name for k in problem.terms.values() if k.term is kind and k.role is Role.EXPONENT]
        if len(own) != 1 or own[0] not in STANDARD:
            continue
        exponent = own[0]
        largest = np.max(np.abs(c[exponent] + c.get(bend, 0.0) * x))
        if largest * np.log(values.max() / values.min()) < STILL:
            yield f"the {term} term hardly changes over the data ({exponent} = {c[exponent]:.3g}), as c does"


def _experts(problem: Problem, c: dict[str, float], data: Observations) -> Iterator[str]:
    if not problem.outer.uses_experts or not {"E_start", "E_max"} & set(problem.free_names):
        return
    most = float(data.points.experts.max())
    span = effective_experts(most, c["E_start"], c["E_max"]) / c["E_start"]
    if span < 1.05:
        yield (
            f"effective experts rise only from {c['E_start']:.3g} to {c['E_start'] * span:.3g} over the data "
            f"(E up to {most:g}), so the exponents of the experts mean nothing"
        )


def _flat(problem: Problem, u: FloatArray, delta: float) -> Iterator[str]:
    """Find directions that the data leave open, those on a bound held."""
    spread, directions, names = open_directions(problem, u, delta)
    for error, direction in zip(spread, directions, strict=True):
        moving = [name for name, part in zip(names, np.abs(direction), strict=True) if part > 0.3]
        # E_max alone is a limit far beyond the data; the rest of the law does not hang on it.
        if error > FLAT and moving != ["E_max"]:
            how = "they can move together" if len(moving) > 1 else "it can move"
            yield f"the data do not determine {' and '.join(moving)}: {how} across the whole range at no cost"


def open_directions(problem: Problem, u: FloatArray, delta: float) -> tuple[FloatArray, FloatArray, tuple[str, ...]]:
    """Return the standard error along each principal direction in widths of the box, the directions, and their axes.

    Coefficients on a bound are held, as the fit held them.
    """
    held = np.array([name in problem.at_bound(u) for name in problem.free_names])
    residuals, jacobian = problem.linearised(u)
    if held.all():
        return np.zeros(0), np.zeros((0, 0)), ()
    scaled = jacobian[~held] * problem.width[~held, None]
    squares, directions = np.linalg.eigh(scaled @ scaled.T)  # an SVD of all rows would start threads, which cost more
    error = residual_scale(residuals, delta, len(problem.free)) / np.sqrt(np.maximum(squares, 1e-300))
    names = tuple(name for name, out in zip(problem.free_names, held, strict=True) if not out)
    return error, directions.T, names


def residual_scale(residuals: FloatArray, delta: float, free: int) -> float:
    """Return the scale that Huber's estimate has: sqrt(mean psi^2) / mean psi', with p degrees of freedom taken off."""
    inner = max(float(np.mean(np.abs(residuals) <= delta)), 1.0 / len(residuals))
    pull = np.clip(residuals, -delta, delta)
    left = max(len(residuals) - free, 1)
    return float(np.sqrt(np.sum(pull**2) / left)) / inner


def robust_deviation(residuals: FloatArray) -> float:
    """Return the standard deviation that the median absolute residual stands for."""
    return 1.4826 * float(np.median(np.abs(residuals)))


def _starts(best: SearchResult) -> Iterator[str]:
    count = len(best.optima.value_S)
    if count >= 4 and best.agreeing.sum() == 1:
        yield f"only one of {count} starts reached the best objective; raise starts before trusting it"


def _tokens(problem: Problem, data: Observations) -> Iterator[str]:
    if problem.outer.uses_tokens:
        return
    tokens = data.points.tokens
    if any(np.ptp(tokens[data.run == run]) > 0 for run in data.runs):
        yield "the law has no token term, yet runs have rows at several D; keep each run's last row"


UNIDENTIFIED = 0.25
"""A coefficient whose standard error is this part of its whole search range is not identified."""
OUTLYING = 5.0
"""Residuals beyond so many robust standard deviations are outliers."""
LEVELS = 8
"""Axes with more values than this are cut into so many parts of equal size."""


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


def unidentified(fit: Fit) -> tuple[str, ...]:
    """Return the coefficients that the data leave open, those on a bound aside."""
    problem, errors = fit.problem, fit_covariance(fit).errors
    wide = zip(fit.free, problem.width, strict=True)
    return tuple(name for name, width in wide if name in errors and errors[name] > UNIDENTIFIED * width)


def outliers(fit: Fit, beyond: float = OUTLYING) -> Table:
    """Return the rows (from 1) whose residual is beyond so many robust standard deviations, worst first."""
    residuals, deviations = fit.residuals, _deviations(fit)
    rows = _outlying(fit, beyond)
    return Table({
        "row": [k + 1 for k in rows],
        "run": [str(fit.observations.run[k]) for k in rows],
        "residual": [float(residuals[k]) for k in rows],
        "deviations": [float(deviations[k]) for k in rows],
    })  # fmt: skip


def _deviations(fit: Fit) -> FloatArray:
    """Return each residual in robust standard deviations."""
    return fit.residuals / max(robust_deviation(fit.residuals), 1e-300)


def _outlying(fit: Fit, beyond: float = OUTLYING) -> list[int]:
    """Return the rows, from 0, whose residual lies beyond so many deviations, worst first."""
    deviations = np.abs(_deviations(fit))
    return [k for k in np.argsort(-deviations, kind="stable").tolist() if deviations[k] > beyond]


def mid_schedule(data: Observations) -> int:
    """Return how many rows are known not to be final losses."""
    return 0 if data.finished is None else int((~data.finished).sum())


def fitted_span(fit: Fit) -> Table:
    """Return the range of each axis; beyond it the law extrapolates."""
    spans = [(axis, *getattr(fit.law.fitted_range, axis)) for axis in AXES]
    return Table.from_records([{"axis": axis, "from": low, "to": high} for axis, low, high in spans])


def warnings_of(fit: Fit) -> tuple[str, ...]:
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
    if rows := _outlying(fit):
        found.append(f"{len(rows)} outliers beyond {OUTLYING:g} deviations, the worst in row {rows[0] + 1}")
    if not fit.law.outer.uses_experts and np.ptp(data.points.experts) > 0:
        found.append("E varies in the data, but the law does not know experts")
    if fit.law.mapping.name == "none" and data.points.recurrence.max() > 1:
        found.append("some rows have R > 1, but the law does not know recurrence")
    if fit.agreeing < fit.starts:
        found.append(f"{fit.starts - fit.agreeing} of {fit.starts} starts ended above the best objective")
    return tuple(found)


def _parts(values: FloatArray) -> list[tuple[float, float, BoolArray]]:
    """Cut an axis into its levels, or into groups of neighbouring levels where there are many."""
    levels = np.unique(values)
    groups = np.array_split(levels, min(LEVELS, len(levels)))
    spans = [(float(group[0]), float(group[-1])) for group in groups]
    return [(low, high, (values >= low) & (values <= high)) for low, high in spans]


def r_squared(fit: Fit) -> float:
    """Return the share of the losses' variance that the law explains."""
    loss = fit.observations.loss
    error = fit.law(fit.observations.points) - loss
    spread = float(np.sum((loss - loss.mean()) ** 2))
    return 1 - float(error @ error) / spread if spread > 0 else float("nan")
