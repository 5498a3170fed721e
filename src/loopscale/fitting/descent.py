"""A bounded Levenberg-Marquardt descent with exact derivatives.

Many descents run side by side, so that small data sets do not pay for Python at each of their steps. Steps solve the
damped quadratic model within the box and are cut to a part of the box that grows and shrinks with success. The cut
matters most: full Gauss-Newton steps from a random start run into corners where a term vanishes, and stay there.

Array names end in their axes: S descents side by side, P free coefficients, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.fitting.problem import Problem

FIRST_REACH, MOST_REACH = 0.1, 0.2
"""Longest step, as a part of the box's width along any coefficient: at the start, and at most."""
OUTER_CURVATURE = 0.02
"""Rows beyond delta have no curvature; this part of their majoriser's keeps the model convex."""
PATIENCE = 8
"""A descent ends after this many trials without a gain above the tolerance; a small gain counts for several."""
SMALL_GAIN = 4
MOST_STEPS = 200
LEAST_DAMPING = 1e-7
"""Below this a failed step takes many trials to recover from."""
MOST_DAMPING = 1e12
SIDE_BY_SIDE = 112_000
"""Derivatives (rows times coefficients times descents) that run side by side: enough to hide Python, few enough for
the cache of a core (0.9 MB). Four times fewer take 1.6x as long, twice as many 0.9x."""


AGREE = 1e-3
"""Descents agree when their objectives are within this of the best."""
EXACT = 1e-15
"""Objectives below this are zero: residuals of 1e-9, as data without noise leave."""


@dataclass(frozen=True, eq=False)
class Optima:
    """Where descents ended, and the objective there."""

    u_SP: FloatArray
    value_S: FloatArray

    @property
    def u(self) -> FloatArray:
        """The best of them."""
        return np.asarray(self.u_SP[np.argmin(self.value_S)])

    @property
    def value(self) -> float:
        """The objective at the best."""
        return float(self.value_S.min())

    @property
    def agreeing(self) -> BoolArray:
        """Which descents ended at the best objective."""
        return np.asarray(self.value_S <= self.value * (1 + AGREE) + EXACT)


def huber(residual: FloatArray, delta: float, weight: FloatArray | None = None) -> FloatArray:
    """Return the sum of Huber's loss along the last axis; half the sum of squares where delta is infinite."""
    if np.isinf(delta):
        terms = 0.5 * residual * residual
    else:
        inner = np.minimum(np.abs(residual), delta)
        terms = inner * (np.abs(residual) - 0.5 * inner)
    return np.asarray((terms if weight is None else weight * terms).sum(axis=-1))


def objective(problem: Problem, u_SP: FloatArray, residual_SR: FloatArray, delta: float) -> FloatArray:
    """Return what a fit minimises: the sum of Huber's loss, and what the priors add."""
    return huber(residual_SR, delta, problem.weight) + problem.penalty(u_SP)


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

    The problem's weights and losses may have one row for each start. Descents wait their turn where there are more than
    suit the cache, and begin when half of those under way have ended.
    """
    count, most = len(starts_SP), most_together(problem)
    optima = Optima(starts_SP.copy(), np.empty(count))
    with np.errstate(all="ignore"):
        going = np.arange(min(count, most))
        group = _Group.at(problem.part(going), starts_SP[going], delta, damping)
        begun = len(going)
        while len(going):
            over = group.advance(tolerance, patience) | (group.trials_S >= steps)
            if over.any():
                optima.u_SP[going[over]], optima.value_S[going[over]] = group.u_SP[over], group.value_S[over]
                going, group = going[~over], group.take(~over)
            if begun < count and len(going) <= most // 2:
                fresh = np.arange(begun, min(count, begun + most - len(going)))
                joining = _Group.at(problem.part(fresh), starts_SP[fresh], delta, damping)
                begun += len(fresh)
                going = np.concatenate([going, fresh])
                group = group.joined(joining, problem.part(going))
    return optima


def most_together(problem: Problem) -> int:
    """Return how many descents of a problem run side by side at most."""
    return max(1, SIDE_BY_SIDE // (len(problem) * max(len(problem.free), 1)))


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
    trials_S: IntArray

    @classmethod
    def at(cls, problem: Problem, u_SP: FloatArray, delta: float, damping: float) -> _Group:
        residual_SR, jacobian_SPR = problem.linearised(u_SP)
        count = len(u_SP)
        return cls(
            problem, delta, u_SP.copy(), objective(problem, u_SP, residual_SR, delta), residual_SR, jacobian_SPR,
            np.full(count, damping), np.full(count, 2.0), np.full(count, FIRST_REACH), np.zeros(u_SP.shape),
            np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64),
        )  # fmt: skip

    def take(self, chosen: BoolArray) -> _Group:
        """Return some of the descents."""
        own = {name: getattr(self, name)[chosen] for name in OF_EACH}
        return _Group(self.problem.part(chosen), self.delta, **own)

    def joined(self, other: _Group, problem: Problem) -> _Group:
        """Return the descents of two groups as one; ``problem`` is that of all of them."""
        own = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in OF_EACH}
        return _Group(problem, self.delta, **own)

    def advance(self, tolerance: float, patience: int) -> BoolArray:
        """Try one step of every descent, accept those that gain, damp the others; return which descents have ended."""
        step_SP, length_S, promised_S = self._step()
        worth_S = promised_S > 1e-15 * self.value_S
        over_S = ~worth_S & ((promised_S >= 0) | (self.damping_S > 1e6)) | (self.damping_S > MOST_DAMPING)
        u_SP = np.minimum(np.maximum(self.u_SP + step_SP, self.problem.lower), self.problem.upper)
        residual_SR, jacobian_SPR = self.problem.linearised(u_SP)
        value_S = objective(self.problem, u_SP, residual_SR, self.delta)
        gained_S = self.value_S - value_S
        kept_S = np.where(worth_S, gained_S / promised_S, 0.0)
        better_S = kept_S > 1e-4  # false for a value that is not a number, too
        self._tune(worth_S, better_S, kept_S, length_S)
        idler_S = self.idle_S + np.where(better_S, SMALL_GAIN, 1)
        self.idle_S = np.where(gained_S > tolerance * self.value_S, 0, idler_S)
        self.trials_S += 1
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
        hessian_SPP = np.matmul(weighted_SPR, jacobian_SPR.transpose(0, 2, 1))
        if self.problem.centre is not None and self.problem.pull is not None:
            gradient_SP = gradient_SP + self.problem.pull**2 * (self.u_SP - self.problem.centre)
            _diagonal(hessian_SPP)[...] += self.problem.pull**2
        return gradient_SP, hessian_SPP

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


OF_EACH = tuple(field.name for field in fields(_Group) if field.name not in ("problem", "delta"))
"""The fields of a group that have an entry for each descent."""


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
