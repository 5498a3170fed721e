"""When the numbers of a fit mean nothing: the reasons, each a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loopscale.arrays import FloatArray
from loopscale.fit.data.read import Observations
from loopscale.fit.problem import Problem
from loopscale.fit.solver import Found
from loopscale.laws import effective_experts


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


CORE = ("A", "alpha", "B", "beta", "a", "d")
"""Coefficients that carry the law: one of them on the edge of its wide range means that the term has run away."""
FLAT = 1.0
"""A direction along which one standard error spans this many widths of the box is not determined at all."""
STILL = 0.02
"""A term that changes by less than this part over all the data is a constant, which c already is."""


def coefficients_at_bound(problem: Problem, u: FloatArray) -> tuple[str, ...]:
    """Return the free coefficients that ended on a bound."""
    near = 1e-6 * problem.width
    on = (u <= problem.lower + near) | (u >= problem.upper - near)
    return tuple(name for name, yes in zip(problem.free_names, on, strict=True) if yes)


def why_degenerate(
    problem: Problem, found: Found, delta: float, data: Observations, bounded: set[str]
) -> tuple[str, ...]:
    """Return the reasons for which the coefficients mean nothing; none for a sound fit.

    ``bounded`` names coefficients whose bounds are the user's own: those may well be on them.
    """
    c = problem.coefficients(found.u)
    at_bound = [name for name in coefficients_at_bound(problem, found.u) if name not in bounded]
    reasons = [
        *_runaways(problem, c, at_bound),
        *_still_terms(problem, c),
        *_experts(problem, c, data),
        *_flat(problem, found.u, delta),
        *_starts(found),
        *_tokens(problem, data),
    ]
    return tuple(reasons)


def _runaways(problem: Problem, c: dict[str, float], at_bound: list[str]) -> Iterator[str]:
    gone = [name for name in at_bound if name in CORE]
    if gone:
        listed = ", ".join(f"{name} = {c[name]:.4g}" for name in gone)
        yield f"{listed} ended on the edge of the search range: the term has run away"
    if "c" in at_bound and problem.outer.name != "routed":
        weakest = max((name for name in ("alpha", "beta") if name in c), key=lambda name: c[name])
        yield (
            f"c ended on its bound {c['c']:.4g}: the data show no irreducible loss, and a slow power "
            f"({weakest} = {c[weakest]:.3g}) stands in for it, as losses in mid-schedule make it do"
        )
    if {"kappa1", "kappa2"} <= set(at_bound):
        yield "kappa1 and kappa2 ended on their bounds: the gain from looping does not saturate in these data"


def _still_terms(problem: Problem, c: dict[str, float]) -> Iterator[str]:
    x = np.log(effective_experts(problem.E, c["E_start"], c["E_max"])) if problem.outer.uses_experts else 0.0
    slopes = (("alpha", "gamma", problem.N, "parameter"), ("beta", "zeta", problem.D, "data"))
    for exponent, bend, values, term in slopes:
        if exponent not in problem.free_names:
            continue
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
    held = np.array([name in coefficients_at_bound(problem, u) for name in problem.free_names])
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


def _starts(found: Found) -> Iterator[str]:
    count = len(found.ends.value_S)
    if count >= 4 and found.agreeing.sum() == 1:
        yield f"only one of {count} starts reached the best objective; raise starts before trusting it"


def _tokens(problem: Problem, data: Observations) -> Iterator[str]:
    if problem.outer.uses_tokens:
        return
    tokens = data.points.tokens
    if any(np.ptp(tokens[data.run == run]) > 0 for run in data.runs):
        yield "the law has no token term, yet runs have rows at several D; keep each run's last row"
