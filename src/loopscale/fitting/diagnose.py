"""What a reader must know before believing a fit: degenerate laws, outliers, and other warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import counted
from loopscale.core.tables import Table
from loopscale.fitting.data.read import Observations
from loopscale.fitting.problem import Problem
from loopscale.fitting.solver import SearchResult, finish, refit, run_weights, varies
from loopscale.scaling import AXES, Spread, effective_experts
from loopscale.scaling.forms import Role, Term
from loopscale.scaling.law import tails

if TYPE_CHECKING:
    from loopscale.fitting.fitting import Fit

FLAT = 1.0
"""A direction along which one standard error spans this many widths of the box is not determined at all."""
STANDARD = ("alpha", "beta")
"""Exponents of a term that is a plain power of N or D."""
STILL = 0.02
"""A term that changes by less than this part over all the data is a constant, which c already is."""


def why_degenerate(
    problem: Problem, best: SearchResult, delta: float, data: Observations, bounded: set[str]
) -> tuple[str, ...]:
    """Return why the data do not determine the coefficients; nothing for a sound fit.

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
    """Say which coefficients the data leave open, those on a bound held."""
    for moving in undetermined(problem, u, delta):
        how = "they can move together" if len(moving) > 1 else "it can move"
        yield f"the data do not determine {' and '.join(moving)}: {how} across the whole range at no cost"


def undetermined(problem: Problem, u: FloatArray, delta: float) -> Iterator[list[str]]:
    """Yield groups of coefficients that can move together at no cost."""
    spread, directions, names = open_directions(problem, u, delta)
    for error, direction in zip(spread, directions, strict=True):
        moving = [name for name, part in zip(names, np.abs(direction), strict=True) if part > 0.3]
        # E_max alone is a limit far beyond the data; the rest of the law does not depend on it.
        if error > FLAT and moving != ["E_max"]:
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


def residual_scale(residuals: FloatArray, delta: float, free: int) -> float:
    """Return the scale that Huber's estimate has: sqrt(mean psi^2) / mean psi', with p degrees of freedom taken off."""
    inner = max(float(np.mean(np.abs(residuals) <= delta)), 1.0 / len(residuals))
    pull = np.clip(residuals, -delta, delta)
    left = max(len(residuals) - free, 1)
    return float(np.sqrt(np.sum(pull**2) / left)) / inner


def robust_deviation(residuals: FloatArray) -> float:
    """Return the standard deviation that the median absolute residual stands for."""
    return 1.4826 * float(np.median(np.abs(residuals)))


def robust_scale(residuals: FloatArray, free: int) -> float:
    """Return a robust standard deviation of the noise, with the degrees of freedom of the fit taken off.

    A fit by absolute values passes through about as many rows as it has coefficients; those do not show the noise.
    """
    left = np.sort(np.abs(residuals))[min(free, len(residuals) - 1) :]
    return 1.4826 * float(np.median(left))


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
"""Residuals beyond so many robust standard deviations are outliers, or beyond more where there are few rows."""
FALSE_ALARMS = 0.05
"""Share of clean sweeps in which chance alone may give an outlier."""
MAD_EFFICIENCY = 0.37
"""Information about the scale that a median of absolute values keeps, relative to a standard deviation."""
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


def outliers(fit: Fit, beyond: float | None = None) -> Table:
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
    return fit.residuals / max(robust_scale(fit.residuals, len(fit.free)), 1e-300)


def _outlying(fit: Fit, beyond: float | None = None) -> list[int]:
    """Return the rows, from 0, whose residual lies beyond so many deviations, worst first."""
    deviations = np.abs(_deviations(fit))
    limit = outlier_limit(len(deviations), len(fit.free)) if beyond is None else beyond
    return [k for k in np.argsort(-deviations, kind="stable").tolist() if deviations[k] > limit]


def outlier_limit(rows: int, free: int) -> float:
    """Return the deviations beyond which a residual is an outlier, so that clean sweeps rarely have one.

    A robust scale from few residuals is uncertain: the limit is a quantile of Student's t with the degrees of freedom
    that such a scale is worth, shared among the rows; with fewer than three degrees no row can be called an outlier.
    """
    degrees = MAD_EFFICIENCY * (rows - free)
    if degrees < 3:
        return np.inf
    z = NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * rows))
    return max(OUTLYING, float(np.sqrt(degrees * np.expm1(z**2 * (degrees - 1.5) / (degrees - 1) ** 2))))


def mid_schedule(data: Observations) -> int:
    """Return how many rows are known not to be final losses."""
    return 0 if data.finished is None else int((~data.finished).sum())


def warnings_of(fit: Fit) -> tuple[str, ...]:
    """Return what a reader of the fit must know, each in a sentence."""
    return (*_misfits(fit), *(f"degenerate: {reason}" for reason in fit.degenerate), *_other_warnings(fit))


def _misfits(fit: Fit) -> Iterator[str]:
    """Say where the law misses its own data; that comes before anything else."""
    if (share := r_squared(fit)) < POOR:
        yield f"lack of fit: the law explains only {max(share, 0.0):.0%} of the variance of the losses"
    if (trend := lack_of_fit(fit)) is not None and trend.significant:
        yield (
            f"lack of fit: residuals have a trend along {trend.along}, up to {trend.size:.1%} of the loss "
            f"(p = {trend.p_value:.3f}); predictions beyond the data will drift"
        )


def _other_warnings(fit: Fit) -> Iterator[str]:
    data = fit.observations
    if fit.at_bound:
        yield f"on a bound: {', '.join(f'{n} = {fit.law.coefficients[n]:.4g}' for n in fit.at_bound)}"
    if names := unidentified(fit):
        yield f"not identified by these data: {', '.join(names)}; predictions inside the range do not need them"
    if mid_schedule(data):
        yield f"{mid_schedule(data)} of {len(data)} rows are in mid-schedule; their losses are not final"
    elif data.finished is None and (earlier := len(data) - len(data.runs)):
        yield (
            f"{earlier} of {len(data)} rows come before the last row of their run; unless the learning rate was "
            "annealed for each, their losses are in mid-schedule (a column `finished` or `annealed` says so)"
        )
    if rows := _outlying(fit):
        limit = outlier_limit(len(data), len(fit.free))
        worst = f"{'the worst ' if len(rows) > 1 else ''}in row {rows[0] + 1}"
        yield f"{counted(len(rows), 'outlier')} beyond {limit:.2g} deviations, {worst}"
    if not fit.law.outer.uses_experts and np.ptp(data.points.experts) > 0:
        yield "E varies in the data, but the law does not know experts"
    if not fit.law.mapping.loops and data.points.recurrence.max() > 1:
        yield "some rows have R > 1, but the law does not know recurrence"
    if fit.agreeing < fit.starts:
        yield f"{fit.starts - fit.agreeing} of {fit.starts} starts ended above the best objective"


POOR = 0.9
"""A law that explains less of the losses' variance than this does not describe them."""
SIGNIFICANT = {40: 0.1, 15: 0.06, 0: 0.04}
"""Probability of a trend by chance alone from which it is reported, by the least degrees of freedom: with few of them
the test warns a little more often than that."""
SHARES = {"N": 4.0, "C": 1.5, "N × D": 0.5}
"""Shares of that probability, 1 for other trends. A law follows most of a bend along N by its own exponent and
constant: what is left needs the largest share to be found as often as a bend along D or C."""
SHUFFLES = 199
"""Randomised data sets that a trend is compared with."""
WINSOR = 4.0
"""Residuals count up to so many robust deviations in a trend: one diverged run is an outlier, not a trend."""


@dataclass(frozen=True)
class Trend:
    """The strongest trend that the residuals keep."""

    along: str
    size: float
    """Largest deviation of the trend line, in ln loss."""
    p_value: float
    level: float
    """The p-value from which it is reported."""

    @property
    def significant(self) -> bool:
        """Whether chance alone hardly explains it."""
        return self.p_value <= self.level


def lack_of_fit(fit: Fit) -> Trend | None:
    """Test the residuals for a bend along N, D, C, R and E, or an interaction of N and D.

    A permutation test, which assumes no distribution: the residuals are shuffled among the rows or, where runs have
    several rows, keep their order and change sign run by run. Directions that the law itself can follow are removed
    first. None where the rows leave too few degrees of freedom.
    """
    jacobian = fit.linearised[1]
    names, features = _bends(fit.observations)
    if len(fit.residuals) - len(fit.free) < MIN_DEGREES or not names:
        return None
    basis = _orthonormal(jacobian)
    left = features - (features @ basis.T) @ basis
    kept = np.linalg.norm(left, axis=1) > 0.05 * np.linalg.norm(features, axis=1)
    if not kept.any():
        return None
    left = left[kept] / np.linalg.norm(left[kept], axis=1, keepdims=True)
    limit = WINSOR * robust_scale(fit.residuals, len(fit.free))
    values = np.clip(fit.residuals, -limit, limit)
    values = values - (values @ basis.T) @ basis
    vectors = np.concatenate([left, basis])
    along = np.concatenate([(values @ vectors.T)[None, :], _randomised(values, vectors, fit.observations.run)])
    outside = values @ values - (along[:, len(left) :] ** 2).sum(axis=1)
    scores = along[:, : len(left)] ** 2 / np.maximum(outside, 1e-300)[:, None]
    tested = [name for name, use in zip(names, kept, strict=True) if use]
    # Each trend's own p-value among all data sets, over its share; the smallest is compared with that of the others.
    shares = (np.argsort(np.argsort(-scores, axis=0), axis=0) + 1) / [SHARES.get(name, 1.0) for name in tested]
    best = int(np.argmin(shares[0]))
    p_value = float(np.mean(shares.min(axis=1) <= shares[0, best] * (1 + 1e-9)))
    size = float(np.abs(left[best]).max() * abs(values @ left[best]))
    return Trend(tested[best], size, p_value, _significance(len(fit.residuals) - len(fit.free)))


def _randomised(values: FloatArray, vectors: FloatArray, run: NDArray[np.str_]) -> FloatArray:
    """Return the products with ``vectors`` of data sets without a trend, made of the same residuals."""
    random, (_, which) = np.random.default_rng(0), np.unique(run, return_inverse=True)
    runs = int(which.max()) + 1
    if runs == len(values):
        return np.asarray(values[np.argsort(random.random((SHUFFLES, runs)), axis=1)] @ vectors.T)
    by_run = np.stack([np.bincount(which, row, runs) for row in vectors * values], axis=1)
    return np.asarray(random.choice([-1.0, 1.0], size=(SHUFFLES, runs)) @ by_run)


def _significance(degrees: int) -> float:
    return next(level for least, level in SIGNIFICANT.items() if degrees >= least)


MIN_DEGREES = 3
"""Degrees of freedom below which no trend can be told from noise."""


def _orthonormal(rows: FloatArray) -> FloatArray:
    """Return an orthonormal basis of the space that the rows span."""
    scaled = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-300)
    squares, directions = np.linalg.eigh(scaled @ scaled.T)  # a fifth of the time of an SVD of all rows
    kept = squares > 1e-12 * squares[-1]
    return np.asarray((directions[:, kept] / np.sqrt(squares[kept])).T @ scaled)


def _bends(data: Observations) -> tuple[list[str], FloatArray]:
    """Return the candidate trends, centred: the square of each log axis with three levels, and N times D."""
    p = data.points
    axes = {"N": p.active, "D": p.tokens, "C": p.train_flops, "R": p.recurrence, "E": p.experts}
    scaled = {name: _scaled(np.log(values)) for name, values in axes.items() if len(np.unique(values)) > 2}
    bends = {name: values**2 for name, values in scaled.items()}
    if {"N", "D"} <= set(scaled):
        bends["N × D"] = scaled["N"] * scaled["D"]
    features = [values - values.mean() for values in bends.values()]
    return list(bends), np.array(features)


def _scaled(values: FloatArray) -> FloatArray:
    low, high = float(values.min()), float(values.max())
    return (2 * values - low - high) / (high - low)


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


def coefficient_intervals(fit: Fit, level: float = 0.9) -> dict[str, tuple[float, float]]:
    """Return each coefficient's percentile interval over the resampled laws; a fixed one has no width."""
    low, high = np.quantile(_resamples(fit), tails(level), axis=0).tolist()
    return {name: (low[k], high[k]) for k, name in enumerate(fit.law.names)}


def _resamples(fit: Fit) -> FloatArray:
    if fit.law.resamples is None:
        raise InputError(f"{fit.law.name}: there are no resampled laws; fit with resamples=100, or call fit.resample()")
    return fit.law.resamples


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
        """How the coefficients' errors go together; zero for one that has no effect on any row."""
        deviation = np.sqrt(np.maximum(np.diag(self.inverse), 0.0))
        scale = np.outer(deviation, deviation)
        return np.divide(self.inverse, scale, out=np.zeros_like(self.inverse), where=scale > 0)


def covariance(
    problem: Problem, u: FloatArray, delta: float, run: NDArray[np.str_], linearised: tuple[FloatArray, FloatArray]
) -> Covariance:
    """Return the covariance of a Huber fit at its optimum ``u``, where the problem is ``linearised``."""
    held = set(problem.at_bound(u))
    keep = np.array([name not in held for name in problem.free_names], dtype=bool)
    residuals, jacobian = linearised
    weight = np.ones(len(residuals)) if problem.weight is None else problem.weight
    jacobian = jacobian[keep]
    # The share of rows within delta stands for the curvature of each: smoother than counting just those rows.
    inner = max(float(np.mean(np.abs(residuals) <= delta)), 1.0 / len(residuals))
    inverse = _inverse(inner * (jacobian * weight) @ jacobian.T)
    scores, runs = _by_run(jacobian * weight * np.clip(residuals, -delta, delta), run)
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


def fit_covariance(fit: Fit) -> Covariance:
    """Return the covariance of the fit's free coefficients."""
    problem = fit.problem
    at = problem.point(fit.law.coefficients)
    return covariance(problem, at, fit.delta, fit.observations.run, fit.linearised)


def intraclass_correlation(fit: Fit) -> float:
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


@dataclass(frozen=True)
class Noise:
    """Standard deviations of ln loss about the law: of a single observation, and of a whole run."""

    observation: float
    run: float

    def __post_init__(self) -> None:
        if not (np.isfinite([self.observation, self.run]).all() and self.observation > 0 and self.run >= 0):
            raise InputError(f"noise is {self.observation} and {self.run} a run; the first should be above zero")

    @classmethod
    def of(cls, fit: Fit) -> Noise:
        """Split the residuals' variance into that within runs and that between them."""
        _, run, rows = np.unique(fit.observations.run, return_inverse=True, return_counts=True)
        residual, n, k, p = fit.residuals, len(fit.residuals), len(rows), len(fit.free)
        if n <= p:
            raise InputError(f"{n} rows leave no residual for {p} coefficients; give the noise")
        if not _separable(fit):  # all of it goes to the observations
            return cls(float(np.sqrt(residual @ residual / (n - p))), 0.0)
        limit = WINSOR * robust_scale(residual, p)  # one diverged run must not pass for noise between runs
        residual = np.clip(residual, -limit, limit)
        mean = np.bincount(run, residual) / rows
        within = float(np.sum((residual - mean[run]) ** 2) / (n - k))
        between = float(np.sum(rows * mean**2) / (k - p))
        common = (n - np.sum(rows**2) / n) / (k - 1)
        return cls(float(np.sqrt(within)), float(np.sqrt(max(between - within, 0.0) / common)))

    @property
    def new_run(self) -> float:
        """The variance of a new run's final ln loss."""
        return self.observation**2 + self.run**2


def _separable(fit: Fit) -> bool:
    """Tell whether runs have several rows and outnumber the coefficients: only then are the two noises apart."""
    return len(fit.free) < len(fit.observations.runs) < len(fit.observations)


def noise_components(fit: Fit) -> Noise | None:
    """Split the noise of a new run into that within a run and that between runs; None where they cannot be told apart.

    The shares are those of an analysis of variance by run, the coefficients' degrees of freedom taken off between the
    runs; the total is :func:`run_noise`, which predictive intervals use.
    """
    if not _separable(fit):
        return None
    parts, total = Noise.of(fit), fit.run_noise
    share = total / float(np.sqrt(parts.new_run))
    return Noise(parts.observation * share, parts.run * share)


def run_effects(fit: Fit) -> Table:
    """Return how far each run lies above the law in ln loss, as a random effect: shrunk to zero by its uncertainty.

    ``effect`` is the mean residual of the run's rows times between / (between + within / rows), variances all.
    """
    names, run, rows = np.unique(fit.observations.run, return_inverse=True, return_counts=True)
    parts = noise_components(fit)
    if parts is None:
        raise InputError(
            f"{fit.observations.source}: run effects need several rows in each run and more runs than the "
            f"{len(fit.free)} coefficients; it has {len(run)} rows of {len(names)} runs"
        )
    mean = np.bincount(run, -fit.residuals) / rows
    shrink = parts.run**2 / np.maximum(parts.run**2 + parts.observation**2 / rows, 1e-300)
    errors = parts.run * np.sqrt(np.maximum(1 - shrink, 0.0))
    return Table.from_arrays((len(names),), run=names, rows=rows, effect=shrink * mean, error=errors)


TYPICAL_NOISE, NOISE_WEIGHT = 0.005, 2.0
"""Run-to-run noise of ln loss in public sweeps, and the degrees of freedom that this experience counts for."""
TYPICAL_GROWTH, GROWTH_WEIGHT = 0.026, 4.0
"""Error of a law one decade beyond its data in public sweeps, and the backtests that this experience counts for."""
LEAST_GROWTH = 0.3
"""A backtest that finds no error at all counts as this part of the typical growth: one of them proves little."""
HIDDEN_DECADES = (0.5, 1.0, 1.5)
BACKTEST_REFITS = 25
MIN_RUNS = 6


def predictive_spread(fit: Fit, seed: int = 0) -> Spread:
    """Estimate what predictive intervals add: noise between runs, and the growth of the law's error beyond the data.

    Growth comes from backtests inside the sweep that hide its top half, one and one and a half decades of compute,
    averaged geometrically with what other sweeps have shown.
    """
    flops = fit.observations.points.train_flops
    found = (excess(fit, flops, decades, seed) for decades in HIDDEN_DECADES)
    excesses = [value for value in found if value is not None]
    parts = noise_components(fit)
    within = None if parts is None else parts.observation
    return Spread(fit.run_noise, mean_growth(excesses), float(flops.max()), len(excesses), within)


def mean_growth(excesses: Sequence[float], typical: float = TYPICAL_GROWTH, weight: float = GROWTH_WEIGHT) -> float:
    """Return the geometric mean of the backtests' errors per decade, with ``typical`` as ``weight`` more of them."""
    floor = 2 * np.log(LEAST_GROWTH * typical)
    logs = [max(float(np.log(max(value, 1e-300))), floor) for value in excesses]
    return float(np.exp((weight * 2 * np.log(typical) + sum(logs)) / (weight + len(logs)) / 2))


def run_noise(fit: Fit) -> float:
    """Return the standard deviation of a new run's ln loss about the law, shrunk to experience where data are few."""
    rows, free = len(fit.residuals), len(fit.free)
    repeated = rows / len(fit.observations.runs) - 1
    independent = rows / (1 + repeated * intraclass_correlation(fit))
    scale = robust_scale(fit.residuals, free)
    if rows > free and independent > free:
        scale *= np.sqrt(independent / (independent - free) * (rows - free) / rows)
    degrees = max(independent - free, 0.0)
    variance = (NOISE_WEIGHT * TYPICAL_NOISE**2 + degrees * scale**2) / (NOISE_WEIGHT + degrees)
    return float(np.sqrt(variance))


def excess(fit: Fit, flops: FloatArray, decades: float, seed: int) -> float | None:
    """Return the squared error per decade that a backtest finds beyond noise; None where it cannot be done."""
    problem, data = fit.problem, fit.observations
    kept = flops <= flops.max() / 10**decades * (1 + 1e-9)
    runs = np.unique(data.run[kept])
    if len(runs) < MIN_RUNS or kept.all() or not varies(problem, kept):
        return None
    inner, start = problem.rows(kept), problem.point(fit.law.coefficients)
    best_u = finish(inner, start[None, :], fit.delta).u_SP[0]
    weights = run_weights(data.where(kept), inner, BACKTEST_REFITS, np.random.default_rng(seed))
    if weights is None:
        return None
    refits_u = refit(inner, best_u, fit.delta, weights, rough=True)
    hidden = problem.rows(~kept)
    errors, drawn = hidden.residuals(best_u), hidden.residuals(refits_u)
    noise = robust_scale(inner.residuals(best_u), len(inner.free))
    distance = np.log10(flops[~kept] / flops[kept].max())
    return float(np.sum(errors**2 - drawn.var(axis=0) - noise**2) / np.sum(distance))
