"""Degenerate fits: why the data do not determine the coefficients of a law."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.descent import Optima
from loopscale.fitting.noise import residual_scale
from loopscale.fitting.problem import Problem
from loopscale.scaling import Role, Term, effective_experts

FLAT = 1.0
"""A direction along which one standard error spans this many widths of the box is not determined at all."""
STANDARD = ("alpha", "beta")
"""Exponents of a term that is a plain power of N or D."""
STILL = 0.02
"""A term that changes by less than this part over all the data is a constant, which c already is."""


def why_degenerate(
    problem: Problem, optima: Optima, delta: float, data: Observations, bounded: set[str]
) -> tuple[str, ...]:
    """Return why the data do not determine the coefficients; nothing for a sound fit.

    ``bounded`` names coefficients whose bounds are the user's own: those may well be on them.
    """
    c = problem.coefficients(optima.u)
    at_bound = [name for name in problem.at_bound(optima.u) if name not in bounded]
    reasons = [
        *_runaways(problem, c, at_bound),
        *_still_terms(problem, c),
        *_experts(problem, c, data),
        *_flat(problem, optima.u, delta),
        *_starts(optima),
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
    gain = [term.name for term in edge if term.term is Term.RECURRENCE and term.positive]
    if len(gain) > 1 and no_gain(problem, c) is None:
        yield f"{' and '.join(gain)} ended on their bounds: the gain from looping does not saturate in these data"


def no_gain(problem: Problem, c: dict[str, float]) -> str | None:
    """Return the size of the gain from looping if it ended on its lower bound: such a law says that R gains nothing.

    That is an answer, not a degenerate fit: no prediction depends on the rest of the mapping.
    """
    size = next((t.name for t in problem.terms.values() if t.term is Term.RECURRENCE and t.positive), None)
    if size is None:
        return None
    k = problem.free_names.index(size)
    return size if problem.point(c)[k] <= problem.lower[k] + 1e-6 * problem.width[k] else None


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
    """Say which coefficients the data leave open, those on a bound held."""
    for moving in undetermined(problem, u, delta):
        yield f"{' and '.join(moving)} {'are' if len(moving) > 1 else 'is'} not identifiable from these data"


def undetermined(problem: Problem, u: FloatArray, delta: float) -> Iterator[list[str]]:
    """Yield groups of coefficients that can move together at no cost."""
    spread, directions, names = open_directions(problem, u, delta)
    for error, direction in zip(spread, directions, strict=True):
        moving = [name for name, part in zip(names, np.abs(direction), strict=True) if part > 0.3]
        # These two bend the count of experts at its ends; where they move freely, no prediction depends on them.
        if error > FLAT and not set(moving) <= {"E_start", "E_max"}:
            yield moving


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


def _starts(optima: Optima) -> Iterator[str]:
    count = len(optima.value_S)
    if count >= 4 and optima.agreeing.sum() == 1:
        yield f"only one of {count} starts reached the best objective; raise `starts` before trusting it"


def _tokens(problem: Problem, data: Observations) -> Iterator[str]:
    if problem.outer.uses_tokens:
        return
    tokens = data.points.tokens
    if any(np.ptp(tokens[data.run == run]) > 0 for run in data.runs):
        yield "the law has no token term, yet runs have rows at several D; keep each run's last row"
