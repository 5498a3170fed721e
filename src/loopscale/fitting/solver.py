"""The search: a bounded Levenberg-Marquardt descent with exact derivatives, its starts, and refits on resampled data.

Many descents run side by side, so that small data sets do not pay for Python at each of their steps. Steps solve the
damped quadratic model within the box and are cut to a part of the box that grows and shrinks with success. The cut
matters most: full Gauss-Newton steps from a random start run into corners where a term vanishes, and stay there.

Array names end in their axes: S descents side by side, P free coefficients, R rows.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.core.errors import InputError, choice
from loopscale.fitting.data.read import Observations
from loopscale.fitting.problem import Problem

if TYPE_CHECKING:
    from loopscale.fitting.fitting import Fit

FIRST_REACH, MOST_REACH = 0.1, 0.2
"""Longest step, as a part of the box's width along any coefficient: at the start, and at most."""
OUTER_CURVATURE = 0.02
"""Rows beyond delta have no curvature; this part of their majoriser's keeps the model convex."""
PATIENCE = 8
"""A descent optima after so many trials without a gain above the tolerance; a small gain counts for several."""
SMALL_GAIN = 4
MOST_STEPS = 200
ROUGH = MappingProxyType({"tolerance": 1e-5, "patience": 4, "steps": 30})
"""Settings of refits of which only the spread is needed."""
LEAST_DAMPING = 1e-7
"""Below this a failed step takes many trials to recover from."""
MOST_DAMPING = 1e12
AGREE = 1e-3
"""Starts agree when their objectives are within this of the best."""


@dataclass(frozen=True, eq=False)
class Optima:
    """Where descents ended, and the objective there."""

    u_SP: FloatArray
    value_S: FloatArray


def huber(residual: FloatArray, delta: float, weight: FloatArray | None = None) -> FloatArray:
    """Return the sum of Huber's loss along the last axis; half the sum of squares where delta is infinite."""
    if np.isinf(delta):
        terms = 0.5 * residual * residual
    else:
        inner = np.minimum(np.abs(residual), delta)
        terms = inner * (np.abs(residual) - 0.5 * inner)
    return np.asarray((terms if weight is None else weight * terms).sum(axis=-1))


def descend(
    problem: Problem,
    starts_SP: FloatArray,
    *,
    delta: float = np.inf,
    tolerance: float = 1e-12,
    steps: int = MOST_STEPS,
    damping: float = 1e-2,
    patience: int = PATIENCE,
) -> Optima:
    """Descend from each start until ``patience`` trials in a row gain less than ``tolerance`` of the objective.

    The problem's weight may have one row for each start.
    """
    optima = Optima(starts_SP.copy(), np.empty(len(starts_SP)))
    going = np.arange(len(starts_SP))
    with np.errstate(all="ignore"):
        group = _Group.at(problem, starts_SP, delta, damping)
        for _ in range(steps):
            over = group.advance(tolerance, patience)
            if over.any():
                group.record(optima, going, over)
                going, group = going[~over], group.take(~over)
                if not len(going):
                    return optima
        group.record(optima, going, np.ones(len(going), dtype=bool))
    return optima


@dataclass(eq=False)
class _Group:
    """Descents under way."""

    problem: Problem
    delta: float
    u_SP: FloatArray
    value_S: FloatArray
    residual_SR: FloatArray
    jacobian_SPR: FloatArray
    damping_S: FloatArray
    growth_S: FloatArray
    """By how much the damping grows if the next step fails."""
    reach_S: FloatArray
    """How far the next step may go, as a part of the box."""
    scale_SP: FloatArray
    """Curvature along each coefficient, forgotten slowly: the metric of the damping."""
    idle_S: IntArray

    @classmethod
    def at(cls, problem: Problem, u_SP: FloatArray, delta: float, damping: float) -> _Group:
        residual_SR, jacobian_SPR = problem.linearised(u_SP)
        count = len(u_SP)
        return cls(
            problem, delta, u_SP.copy(), huber(residual_SR, delta, problem.weight), residual_SR, jacobian_SPR,
            np.full(count, damping), np.full(count, 2.0), np.full(count, FIRST_REACH), np.zeros(u_SP.shape),
            np.zeros(count, dtype=np.int64),
        )  # fmt: skip

    def take(self, chosen: BoolArray) -> _Group:
        """Go on with some of the descents only."""
        weight = self.problem.weight
        problem = self.problem if weight is None or weight.ndim == 1 else self.problem.weighted(weight[chosen])
        return _Group(
            problem, self.delta, self.u_SP[chosen], self.value_S[chosen], self.residual_SR[chosen],
            self.jacobian_SPR[chosen], self.damping_S[chosen], self.growth_S[chosen], self.reach_S[chosen],
            self.scale_SP[chosen], self.idle_S[chosen],
        )  # fmt: skip

    def record(self, optima: Optima, which: IntArray, chosen: BoolArray) -> None:
        """Write down where the chosen descents are."""
        optima.u_SP[which[chosen]] = self.u_SP[chosen]
        optima.value_S[which[chosen]] = self.value_S[chosen]

    def advance(self, tolerance: float, patience: int) -> BoolArray:
        """Try one step of every descent, keep those that gain, damp the others; tell which descents are over."""
        step_SP, length_S, promised_S = self._step()
        worth_S = promised_S > 1e-15 * self.value_S
        over_S = ~worth_S & ((promised_S >= 0) | (self.damping_S > 1e6)) | (self.damping_S > MOST_DAMPING)
        u_SP = np.minimum(np.maximum(self.u_SP + step_SP, self.problem.lower), self.problem.upper)
        residual_SR, jacobian_SPR = self.problem.linearised(u_SP)
        value_S = huber(residual_SR, self.delta, self.problem.weight)
        gained_S = self.value_S - value_S
        kept_S = np.where(worth_S, gained_S / promised_S, 0.0)
        better_S = kept_S > 1e-4  # false for a value that is not a number, too
        self._tune(worth_S, better_S, kept_S, length_S)
        idler_S = self.idle_S + np.where(better_S, SMALL_GAIN, 1)
        self.idle_S = np.where(gained_S > tolerance * self.value_S, 0, idler_S)
        self._move(better_S, u_SP, value_S, residual_SR, jacobian_SPR)
        return np.asarray(over_S | (self.idle_S >= patience))

    def _step(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the steps, their length as a part of the box, and what the model promises of each."""
        gradient_SP, hessian_SPP = self._model()
        curvature_SP = _diagonal(hessian_SPP)
        floor_S = 1e-12 * curvature_SP.max(axis=1, initial=1e-300)
        self.scale_SP = np.maximum(np.maximum(0.5 * self.scale_SP, curvature_SP), floor_S[:, None])
        damped_SPP = hessian_SPP.copy()
        _diagonal(damped_SPP)[...] += self.damping_S[:, None] * self.scale_SP
        problem = self.problem
        step_SP = box_step(damped_SPP, gradient_SP, problem.lower - self.u_SP, problem.upper - self.u_SP)
        length_S = (np.abs(step_SP) / problem.width).max(axis=1)
        step_SP *= np.minimum(1.0, self.reach_S / np.maximum(length_S, 1e-300))[:, None]
        curved_SP = np.matmul(hessian_SPP, step_SP[:, :, None])[:, :, 0]
        return step_SP, np.minimum(length_S, self.reach_S), -(step_SP * (gradient_SP + 0.5 * curved_SP)).sum(axis=1)

    def _model(self) -> tuple[FloatArray, FloatArray]:
        """Return gradient and model Hessian."""
        weight = self.problem.weight
        pull_SR, curvature_SR = self.residual_SR, weight
        if not np.isinf(self.delta):
            far_SR = np.abs(pull_SR)
            outer_SR = OUTER_CURVATURE * self.delta / np.maximum(far_SR, self.delta)
            inner_SR = np.where(far_SR <= self.delta, 1.0, outer_SR)
            curvature_SR = inner_SR if weight is None else inner_SR * weight
            pull_SR = np.minimum(np.maximum(pull_SR, -self.delta), self.delta)
        if weight is not None:
            pull_SR = pull_SR * weight
        jacobian_SPR = self.jacobian_SPR
        weighted_SPR = jacobian_SPR if curvature_SR is None else jacobian_SPR * curvature_SR[..., None, :]
        gradient_SP = np.matmul(jacobian_SPR, pull_SR[:, :, None])[:, :, 0]
        return gradient_SP, np.matmul(weighted_SPR, jacobian_SPR.transpose(0, 2, 1))

    def _tune(self, worth_S: BoolArray, better_S: BoolArray, kept_S: FloatArray, length_S: FloatArray) -> None:
        """Set damping and reach for the next trial."""
        eased_S = np.maximum(self.damping_S * np.maximum(0.2, 1 - (2 * kept_S - 1) ** 3), LEAST_DAMPING)
        raised_S = np.maximum(self.damping_S * np.where(worth_S, self.growth_S, 10.0), 1e-10)
        self.damping_S = np.where(better_S, eased_S, raised_S)
        self.growth_S = np.where(better_S, 2.0, np.where(worth_S, 2.0 * self.growth_S, self.growth_S))
        longer_S = np.minimum(np.maximum(4.0 * length_S, self.reach_S), MOST_REACH)
        wider_S = np.where(kept_S > 0.5, longer_S, self.reach_S)
        self.reach_S = np.where(better_S, wider_S, np.where(worth_S, 0.5 * length_S, self.reach_S))

    def _move(
        self, better_S: BoolArray, u: FloatArray, value: FloatArray, residual: FloatArray, jac: FloatArray
    ) -> None:
        if better_S.all():
            self.u_SP, self.value_S, self.residual_SR, self.jacobian_SPR = u, value, residual, jac
        elif better_S.any():
            self.u_SP[better_S], self.value_S[better_S] = u[better_S], value[better_S]
            self.residual_SR[better_S], self.jacobian_SPR[better_S] = residual[better_S], jac[better_S]


def _diagonal(matrix_SPP: FloatArray) -> FloatArray:
    """Return a view of the diagonals of contiguous square matrices."""
    size = matrix_SPP.shape[-1]
    return matrix_SPP.reshape(len(matrix_SPP), size * size)[:, :: size + 1]


def box_step(hessian_SPP: FloatArray, gradient_SP: FloatArray, low_SP: FloatArray, high_SP: FloatArray) -> FloatArray:
    """Minimise each quadratic model within its box: solve, hold at its bound what crosses it, solve again.

    Now and then this holds more than the exact minimum would; the next step lets go again.
    """
    free_SP = ~(((low_SP >= 0) & (gradient_SP > 0)) | ((high_SP <= 0) & (gradient_SP < 0)))
    step_SP = np.zeros(gradient_SP.shape)
    for _ in range(gradient_SP.shape[1]):
        solved_SP = _solve_free(hessian_SPP, gradient_SP, step_SP, free_SP)
        inside_SP = np.minimum(np.maximum(solved_SP, low_SP), high_SP)
        step_SP = np.where(free_SP, inside_SP, step_SP)
        crossing_SP = free_SP & (inside_SP != solved_SP)
        if not crossing_SP.any():
            break
        free_SP &= ~crossing_SP
    return step_SP


def _solve_free(
    hessian_SPP: FloatArray, gradient_SP: FloatArray, step_SP: FloatArray, free_SP: BoolArray
) -> FloatArray:
    """Solve for the free coefficients with the others held; the others get an identity row."""
    right_SP = -gradient_SP
    if not free_SP.all():
        held_SP = np.where(free_SP, 0.0, step_SP)
        right_SP = right_SP - np.matmul(hessian_SPP, held_SP[:, :, None])[:, :, 0]
        right_SP = np.where(free_SP, right_SP, 0.0)
        hessian_SPP = np.where(free_SP[:, :, None] & free_SP[:, None, :], hessian_SPP, 0.0)
        _diagonal(hessian_SPP)[~free_SP] = 1.0
    try:
        return np.asarray(np.linalg.solve(hessian_SPP, right_SP[:, :, None])[:, :, 0], dtype=np.float64)
    except np.linalg.LinAlgError:
        # One singular model stops the whole stack; a step down the scaled gradient serves until the damping has grown.
        return np.asarray(right_SP / np.maximum(np.einsum("spp->sp", hessian_SPP), 1e-300))


def typical(problem: Problem) -> dict[str, float]:
    """Return a plausible value for every coefficient, sized by the data; fixed ones keep theirs."""
    fixed = {name: value for name, value in zip(problem.names, problem.values, strict=True) if not np.isnan(value)}
    return problem.form.typical(np.exp(problem.log_loss), problem.x) | fixed


def check_finite(problem: Problem) -> None:
    """Refuse a form that has no finite loss at plausible coefficients: no search could begin."""
    with np.errstate(all="ignore"):
        residuals, slopes = problem.linearised(problem.point(typical(problem)))
    if not (np.isfinite(residuals).all() and np.isfinite(slopes).all()):
        raise InputError(
            f"{problem.form}: it gives no finite loss and derivatives on these data at plausible coefficients; "
            "check the expression, and give bounds"
        )


def random_starts(problem: Problem, count: int, seed: int) -> FloatArray:
    """Return points drawn evenly over the whole box."""
    return problem.lower + problem.width * np.random.default_rng(seed).random((count, len(problem.free)))


def staged_start(problem: Problem) -> FloatArray:
    """Return a start whose base law has been fitted to the rows with R = 1, as the paper's first stage is."""
    u = problem.point(typical(problem))
    base, once = problem.base, problem.R == 1
    if not problem.mapping.loops or not base.any() or once.sum() <= len(problem.free):
        return u
    stage = spread_rows(problem.rows(once), 8 * len(problem.free)).with_fixed(~base, u)
    u[base] = descend(stage, u[base][None, :], tolerance=1e-2, patience=4).u_SP[0]
    return u


def spread_rows(problem: Problem, most: int) -> Problem:
    """Return the problem on at most that many rows, spread evenly over the sorted design.

    A search needs the shape of the objective, not its last digit; a tenth of the rows has it.
    """
    if len(problem) <= most:
        return problem
    order = np.lexsort((problem.D, problem.N, problem.R, problem.E))
    chosen = order[np.linspace(0, len(order) - 1, most).round().astype(int)]
    return problem.rows(np.sort(chosen))


def start_from(problem: Problem, coefficients: Mapping[str, float]) -> FloatArray:
    """Return a start at given coefficients; those not given are typical."""
    return problem.point(typical(problem) | dict(coefficients))


EXACT = 1e-15
"""Objectives below this are zero: residuals of 1e-9, as data without noise leave."""
ROUGH_ROWS = 120
SIDE_BY_SIDE = 28_000
"""Derivatives (rows times coefficients times descents) that run side by side: enough to hide Python, few enough for
the cache."""
HOPELESS = 30.0
"""A start whose squared error on some of the rows is this far above the best is not finished on all of them."""


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The best point, and where every start ended."""

    u: FloatArray
    value: float
    optima: Optima

    @property
    def agreeing(self) -> BoolArray:
        """The starts that ended at the best objective."""
        return np.asarray(self.optima.value_S <= self.value * (1 + AGREE) + EXACT)


def search(problem: Problem, starts_SP: FloatArray, delta: float) -> SearchResult:
    """Descend from every start, by least squares on some rows first, then by the objective on all of them."""
    some = spread_rows(problem, max(ROUGH_ROWS, 8 * len(problem.free)))
    rough = _revived(some, side_by_side(some, starts_SP, tolerance=1e-4))
    basin_S, first_B = _basins(some, rough)
    hopeful_B = rough.value_S[first_B] <= HOPELESS * rough.value_S.min()
    u_BP = rough.u_SP[first_B]
    value_B = huber(problem.residuals(u_BP), delta, problem.weight)
    finished = finish(problem, u_BP[hopeful_B], delta)
    u_BP[hopeful_B], value_B[hopeful_B] = finished.u_SP, finished.value_S
    best = int(np.argmin(value_B))
    return SearchResult(u_BP[best], float(value_B[best]), Optima(u_BP[basin_S], value_B[basin_S]))


def finish(problem: Problem, u_SP: FloatArray, delta: float) -> Optima:
    """Descend to the last digit from points near an optimum: least squares first, which forgives a worse start."""
    near = side_by_side(problem, u_SP, tolerance=1e-3, patience=4, damping=1e-5)
    return side_by_side(problem, near.u_SP, delta=delta, damping=1e-6)


def side_by_side(
    problem: Problem,
    starts_SP: FloatArray,
    *,
    delta: float = np.inf,
    tolerance: float = 1e-12,
    patience: int = PATIENCE,
    damping: float = 1e-2,
    steps: int = MOST_STEPS,
) -> Optima:
    """Descend from all starts, in groups that suit the cache."""
    settings: Any = {"delta": delta, "tolerance": tolerance, "patience": patience, "damping": damping, "steps": steps}
    size = max(1, SIDE_BY_SIDE // (len(problem) * max(len(problem.free), 1)))
    groups = [slice(k, k + size) for k in range(0, len(starts_SP), size)]
    optima = [descend(problem.part(g), starts_SP[g], **settings) for g in groups]
    return Optima(np.concatenate([end.u_SP for end in optima]), np.concatenate([end.value_S for end in optima]))


def _revived(problem: Problem, optima: Optima) -> Optima:
    """Give starts that ended above the best a second life, idle coefficients reset to typical values."""
    idle_SP = _idle(problem, optima)
    again = np.flatnonzero(idle_SP.any(axis=1) & (optima.value_S > 1.01 * optima.value_S.min()))
    if not len(again):
        return optima
    reset_SP = np.where(idle_SP, problem.point(typical(problem)), optima.u_SP)[again]
    second = side_by_side(problem, reset_SP, tolerance=1e-4)
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


def paper_recipe(problem: Problem, start: FloatArray, delta: float) -> Optima:
    """Return where the paper's procedure optima from one start, given in search coordinates."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # curve_fit warns of a covariance that is not used
        plain = _plain(problem)
        x = problem.vectors(start)[problem.free]
        once, base = problem.R == 1, problem.base
        if problem.mapping.loops and base.any() and once.sum() > base.sum():
            x[base] = _stage(plain.rows(once).with_fixed(~base, x), x[base], delta)
        x = _stage(plain, x, delta)
        u = problem.point(dict(zip(problem.free_names, x.tolist(), strict=True)))
        return Optima(u[None, :], huber(problem.residuals(u), delta)[None])


def _stage(problem: Problem, x: FloatArray, delta: float) -> FloatArray:
    from scipy.optimize import Bounds, curve_fit, minimize  # half a second, which only this recipe should cost

    box, loss, unit = (problem.lower, problem.upper), np.exp(problem.log_loss), 1.0

    def predicted(_: FloatArray, *values: float) -> FloatArray:
        return np.asarray(np.exp(problem.residuals(np.array(values))) * loss)

    def objective(values: FloatArray) -> float:
        return float(huber(problem.residuals(values), delta)) / unit

    # Where it does not converge or a value is not a number, the second step continues from the start.
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


class Scheme(Enum):
    """What a resampled data set is made of."""

    RUNS = "runs"
    """As many runs as there are, with replacement: rows of one run stay together."""
    OBSERVATIONS = "observations"
    """As many rows as there are, with replacement."""
    PAPER = "paper"
    """90% of the rows without replacement, as the paper does: intervals about three times too narrow."""
    NOISE = "noise"
    """The same rows with new losses drawn around the law; used where there are too few runs to leave any out."""


PAPER_SHARE = 0.9
BATCH = 20
"""Refits handed out together."""
PAYS = 5.0
"""Seconds of work left from which a pool of processes pays for its start."""

Progress = Callable[[int, int], None]


def resample(
    fit: Fit,
    *,
    scheme: Scheme | str = Scheme.RUNS,
    count: int = 100,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Return the fit with its law refitted on ``count`` resampled data sets, as ``law.resamples``.

    Runs are drawn with replacement by default, because the points along one run are not independent. Refits start at
    the full fit: on simulated and public sweeps that was never above a full search of the same resample. ``workers``
    processes share them; None means several only where the work takes long. ``progress`` is called with the number
    done and the total.
    """
    kind = scheme if isinstance(scheme, Scheme) else choice(Scheme, scheme, "scheme")
    if count < 2:
        raise InputError(f"count is {count}; resampling needs 2 or more refits")
    problem, random = fit.problem, np.random.default_rng(seed)
    weights = None if kind is Scheme.NOISE else run_weights(fit.observations, problem, count, random, kind)
    if weights is None:
        drawn = _noisy_refits(fit, count, random)
        return replace(fit, law=replace(fit.law, resamples=drawn), scheme=Scheme.NOISE)
    start, rows = problem.point(fit.law.coefficients), list[FloatArray]()
    for refitted in _refits(problem, start, fit.delta, np.array_split(weights, -(-count // BATCH)), workers):
        rows.append(refitted)
        if progress is not None:
            progress(sum(map(len, rows)), count)
    return replace(fit, law=replace(fit.law, resamples=np.concatenate(rows)), scheme=kind)


def _noisy_refits(fit: Fit, count: int, random: np.random.Generator) -> FloatArray:
    """Refit to losses drawn around the fitted law: a sweep too small to leave runs out still has noise."""
    problem, u = fit.problem, fit.problem.point(fit.law.coefficients)
    fitted = problem.residuals(u) + problem.log_loss
    noise = fit.run_noise * random.standard_normal((count, len(problem)))
    draws = (replace(problem, log_loss=fitted + row) for row in noise)
    optima = [side_by_side(draw, u[None, :], delta=fit.delta, tolerance=1e-9, damping=1e-6).u_SP for draw in draws]
    return problem.vectors(np.concatenate(optima))


def _refits(
    problem: Problem, start: FloatArray, delta: float, batches: list[FloatArray], workers: int | None
) -> Iterator[FloatArray]:
    """Yield the refitted coefficients batch by batch, in processes where that pays or is asked for."""
    work = partial(_refit, problem, start, delta)
    count = os.cpu_count() or 1 if workers is None else workers
    rest = batches
    if workers is None:
        began = time.perf_counter()
        yield work(batches[0])
        rest = batches[1:]
        count = count if (time.perf_counter() - began) * len(rest) > PAYS else 1
    if min(count, len(rest)) <= 1:
        yield from map(work, rest)
        return
    with ProcessPoolExecutor(min(count, len(rest)), mp_context=_context()) as pool:
        yield from pool.map(work, rest)


def refit(
    problem: Problem,
    start: FloatArray,
    delta: float,
    weights: FloatArray,
    *,
    rough: bool = False,
) -> FloatArray:
    """Return where descents from ``start`` end, one for each row of weights, in search coordinates.

    ``rough`` ones end early: enough for their spread, where the rows hardly determine the law and none would settle.
    """
    starts = np.tile(start, (len(weights), 1))
    settings: Any = ROUGH if rough else {"tolerance": 1e-9}
    return side_by_side(problem.weighted(weights), starts, delta=delta, damping=1e-6, **settings).u_SP


def _refit(problem: Problem, start: FloatArray, delta: float, weights: FloatArray) -> FloatArray:
    return problem.vectors(refit(problem, start, delta, weights))


def _context() -> multiprocessing.context.BaseContext:
    """Fork where the system has it: a spawned worker would run an unguarded script of the user's again."""
    return multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else None)


def run_weights(
    data: Observations, problem: Problem, count: int, random: np.random.Generator, scheme: Scheme = Scheme.RUNS
) -> FloatArray | None:
    """Return how often each row counts in each resample, or None where most draws cannot determine the law.

    Keeping only the draws that can would favour those near the whole data, and give too narrow intervals.
    """
    weights, accepted = np.empty((count, len(data))), 0
    units = np.unique(data.run, return_inverse=True)[1] if scheme is Scheme.RUNS else np.arange(len(data))
    for _ in range(2 * count):
        weights[accepted] = _draw(units, scheme, random)
        accepted += varies(problem, weights[accepted] > 0)
        if accepted == count:
            break
    if accepted < count:
        return None
    return weights if problem.weight is None else weights * problem.weight


def _draw(units: IntArray, scheme: Scheme, random: np.random.Generator) -> FloatArray:
    """Return how often each row is drawn; rows of one unit stay together."""
    if scheme is Scheme.PAPER:
        kept = random.permutation(len(units)) < PAPER_SHARE * len(units)
        return kept.astype(float)
    count = int(units.max()) + 1
    return random.multinomial(count, np.full(count, 1.0 / count))[units].astype(float)


def varies(problem: Problem, drawn: np.ndarray) -> bool:
    """Tell whether a draw keeps more rows than coefficients, and two values of every axis that the law uses."""
    axes = [problem.N]
    axes += [problem.D] if problem.outer.uses_tokens and np.ptp(problem.D) > 0 else []
    axes += [problem.E] if problem.outer.uses_experts and np.ptp(problem.E) > 0 else []
    axes += [problem.R] if problem.mapping.loops else []
    varied = all(np.ptp(axis[drawn]) > 0 for axis in axes if np.ptp(axis) > 0)
    return varied and int(drawn.sum()) > len(problem.free)
