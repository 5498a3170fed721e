"""Which runs to train next: those that reduce the expected error of the law at a target most.

Optimal experimental design on the law's exact Jacobian, for a form that may be wrong (``form_error``). Each run adds
one row of information; the target's variance after it follows from a rank-one update, so thousands of candidates are
weighed at once. What counts as the target is either the predictions at some points (V-optimality) or the differences
between a plan's choice and its rivals. Shapes: Z laws, n candidates, p free coefficients, q targets, t target points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from loopscale.choosing.candidates import Goal, RunCandidates, Target, default_candidates
from loopscale.choosing.form_error import ACROSS, covariance, form_growth, places
from loopscale.choosing.runs import NextRuns, PlannedRun
from loopscale.core.arrays import FloatArray, IntArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_count
from loopscale.fitting import Fit, Noise, Observations
from loopscale.planning import Plan
from loopscale.scaling import ScalingLaw

LAWS = 8
"""Resampled laws that the choice is averaged over: one estimate alone misplaces runs when it is poor."""
MOST_RUNS = 200
"""Runs after which the choice ends, even if some of the budget is left."""


def next_runs(
    fit: Fit,
    budget: float,
    target: Target | Plan | str | Path,
    *,
    candidates: RunCandidates | None = None,
    noise: Noise | None = None,
    growth: float | None = None,
    most: int = MOST_RUNS,
) -> NextRuns:
    """Choose runs within ``budget`` FLOPs that reduce the expected error of the refitted law at ``target`` most.

    ``target`` is a ``Target``, or a plan or its file. Its variance has two parts: of the coefficients, and of the
    law's form, which errs more the further the target lies beyond the largest run (``growth`` of ln loss per root
    decade of compute, estimated from the residuals; 0 trusts the form). Runs are chosen one by one, by what they
    remove per FLOP, per root of FLOPs and per run; the best of the three designs is kept. Averages over the law's
    resamples where it has them. Every coefficient has a weak prior as wide as its bounds. No run is chosen twice;
    ``most`` limits their number.
    """
    goal = Target.of(target, fit.observations.counts)
    pool = candidates or default_candidates(fit, budget, goal)
    _check(budget, pool)
    pool = pool.where(_worth_weighing(fit.observations, pool, goal, budget))
    spread = noise or Noise.of(fit)
    drift = form_growth(fit, spread) if growth is None else growth
    laws = _laws(fit)
    start = _State.start(fit, laws, pool, goal, spread, drift)
    designs = [_greedy(start, pool, budget, most, power) for power in COST_POWERS]
    chosen, states = min(designs, key=lambda design: design[1][-1].remaining(start))
    errors = [state.standard_error for state in states]
    runs = _planned(pool.where(np.array(chosen, dtype=np.int64)), errors[1:])
    return NextRuns(
        runs, goal.goal, budget, errors[0], errors[-1], spread, len(pool), len(laws), drift,
        states[0].law_error, states[-1].law_error,
    )  # fmt: skip


COST_POWERS = (1.0, 0.5, 0.0)
"""Runs are chosen by what they remove over their cost to these powers; the best design of the three is kept."""


def _greedy(
    start: _State, pool: RunCandidates, budget: float, most: int, power: float
) -> tuple[list[int], list[_State]]:
    """Choose runs one by one while one helps and is affordable; return them and the state after each."""
    chosen: list[int] = []
    states, left = [start], budget
    free = np.ones(len(pool), dtype=bool)
    while len(chosen) < most and np.any(usable := free & (pool.flops <= left)):
        fall = states[-1].relative_fall()
        best = int(np.argmax(np.where(usable, fall / pool.flops**power, -np.inf)))
        if fall[best] <= 0:
            break
        states.append(states[-1].after(best))
        chosen.append(best)
        free[best], left = False, left - pool.flops[best]
    return chosen, states


@dataclass(frozen=True, eq=False)
class _State:
    """The coefficients' covariance under each law, in units of their priors, and what the walk adds to it.

    With y = law + walk + noise, the fitted coefficients miss by M^-1 J' V^-1 (walk + noise), M the information with the
    prior. The target misses by its gradient times that, less the walk at the target.
    """

    rows_Znp: FloatArray
    """Gradients of the candidates' ln loss."""
    target_Zqp: FloatArray
    covariance_Zpp: FloatArray
    """M^-1"""
    leverage_Znp: FloatArray
    """Candidate rows times covariance."""
    noise: float
    growth: float
    walk_Zpp: FloatArray
    """Covariance of the weighted sum of the walk over the data."""
    walk_Znp: FloatArray
    """That sum with the walk at each candidate."""
    walk_Zqp: FloatArray
    """That sum with the walk at the target."""
    places_n2: FloatArray
    """Where the candidates lie for the walk."""
    candidate_target_nq: FloatArray
    """The walk at the candidates with that at the target."""
    target_q: FloatArray
    """Variance of the walk at the target."""

    @classmethod
    def start(
        cls, fit: Fit, laws: list[ScalingLaw], pool: RunCandidates, target: Target, noise: Noise, growth: float
    ) -> _State:
        scale = _prior(fit)
        columns = [fit.law.names.index(name) for name in fit.free]
        data = fit.observations
        rows, goals, covariances, weighted = [], [], [], []
        for law in laws:
            loss, gradient = law.value_and_gradient(pool.points)
            rows.append(gradient[:, columns] / loss[:, None] * scale)
            goals.append(target.rows(law.value_and_gradient(target.points)[1][:, columns] * scale))
            own = _data_rows(law, data, columns, scale)
            weighted.append(_weighted(own, data, noise))
            covariances.append(np.linalg.inv(np.eye(len(scale)) + own.T @ weighted[-1]))
        rows_Znp, covariance_Zpp = np.stack(rows), np.stack(covariances)
        where = [places(points) for points in (data.points, pool.points, target.points)]
        seen, new, aim = (at - np.vstack(where).min(axis=0) for at in where)
        weighted_Znp = np.stack(weighted)
        # The target's walk as its goal reads it: each loss, or each difference to the first.
        reads_qt = target.rows(np.diag(fit.law(target.points)))
        return cls(
            rows_Znp, np.stack(goals), covariance_Zpp, rows_Znp @ covariance_Zpp, noise.new_run_variance, growth,
            np.stack([rows.T @ (covariance(seen, seen) @ rows) for rows in weighted_Znp]),
            covariance(new, seen) @ weighted_Znp, (reads_qt @ covariance(aim, seen)) @ weighted_Znp, new,
            covariance(new, aim) @ reads_qt.T,
            np.einsum("qt,ts,qs->q", reads_qt, covariance(aim, aim), reads_qt),
        )  # fmt: skip

    @property
    def _own_n(self) -> FloatArray:
        """Variance of the walk at each candidate."""
        return np.asarray(self.places_n2 @ np.array([1.0, ACROSS**2]))

    @property
    def _weights_Zqp(self) -> FloatArray:
        return self.target_Zqp @ self.covariance_Zpp

    @property
    def law_variance_Z(self) -> FloatArray:
        """The target's mean variance under each law from its coefficients alone."""
        return np.asarray(np.einsum("zqp,zqp->zq", self._weights_Zqp, self.target_Zqp).mean(axis=1))

    @property
    def variance_Z(self) -> FloatArray:
        """The target's mean variance under each law, with the error of the form."""
        w = self._weights_Zqp
        walk_Zq = np.einsum("zqp,zpr,zqr->zq", w, self.walk_Zpp, w) + self.target_q
        walk_Zq = walk_Zq - 2 * np.einsum("zqp,zqp->zq", w, self.walk_Zqp)
        return np.asarray(self.law_variance_Z + self.growth**2 * walk_Zq.mean(axis=1))

    @property
    def standard_error(self) -> float:
        """At the fitted law, which comes first."""
        return float(np.sqrt(max(self.variance_Z[0], 0.0)))

    @property
    def law_error(self) -> float:
        """The part of the coefficients, at the fitted law."""
        return float(np.sqrt(max(self.law_variance_Z[0], 0.0)))

    def remaining(self, start: _State) -> float:
        """Return the share of the variance at the start that is left, averaged over laws."""
        return float(np.mean(self.variance_Z / start.variance_Z))

    def relative_fall(self) -> FloatArray:
        """Return, for each candidate, the share of the target's variance that it would remove, averaged over laws."""
        seen_Zn = self.noise + np.einsum("znp,znp->zn", self.leverage_Znp, self.rows_Znp)
        shared_Znq = self.leverage_Znp @ self.target_Zqp.transpose(0, 2, 1)
        step_Znq = shared_Znq / seen_Zn[:, :, None]
        after_Znq = -shared_Znq * step_Znq
        if self.growth:
            after_Znq = after_Znq + self.growth**2 * self._walk_change(shared_Znq, step_Znq, seen_Zn)
        return np.asarray((-after_Znq.mean(axis=2) / self.variance_Z[:, None]).mean(axis=0))

    def _walk_change(self, shared_Znq: FloatArray, step_Znq: FloatArray, seen_Zn: FloatArray) -> FloatArray:
        """Return how each candidate would change the walk's part of the variance, by the rank-one update."""
        along, w = self.leverage_Znp, self._weights_Zqp
        by_walk_Znp = along @ self.walk_Zpp
        new_weight_Znq = step_Znq  # of the candidate in the estimate, times the noise
        quadratic = (
            -2 * step_Znq * np.einsum("znp,zqp->znq", by_walk_Znp, w)
            + step_Znq**2 * np.einsum("znp,znp->zn", by_walk_Znp, along)[:, :, None]
        )
        own = np.einsum("zqp,znp->znq", w, self.walk_Znp)
        own = own - step_Znq * np.einsum("znp,znp->zn", along, self.walk_Znp)[:, :, None]
        quadratic = quadratic + 2 * own * new_weight_Znq + self._own_n[:, None] * new_weight_Znq**2
        cross = -step_Znq * np.einsum("znp,zqp->znq", along, self.walk_Zqp) + new_weight_Znq * self.candidate_target_nq
        return np.asarray(quadratic - 2 * cross)

    def after(self, run: int) -> _State:
        """Return the state once that candidate is observed: a rank-one update."""
        along_Zp, row_Zp = self.leverage_Znp[:, run], self.rows_Znp[:, run]
        seen_Z = self.noise + np.einsum("zp,zp->z", along_Zp, row_Zp)
        step_Zp = along_Zp / seen_Z[:, None]
        met_Zn = np.einsum("znp,zp->zn", self.rows_Znp, along_Zp)
        weighted = row_Zp / self.noise
        cross_Zpp = self.walk_Znp[:, run][:, :, None] * weighted[:, None, :]
        own_Zpp = self._own_n[run] * weighted[:, :, None] * weighted[:, None, :]
        near_n = covariance(self.places_n2, self.places_n2[run : run + 1])[:, 0]
        return replace(
            self,
            covariance_Zpp=self.covariance_Zpp - along_Zp[:, :, None] * step_Zp[:, None, :],
            leverage_Znp=self.leverage_Znp - met_Zn[:, :, None] * step_Zp[:, None, :],
            walk_Zpp=self.walk_Zpp + cross_Zpp + cross_Zpp.transpose(0, 2, 1) + own_Zpp,
            walk_Znp=self.walk_Znp + near_n[:, None] * weighted[:, None, :],
            walk_Zqp=self.walk_Zqp + self.candidate_target_nq[run][:, None] * weighted[:, None, :],
        )


def _worth_weighing(observations: Observations, pool: RunCandidates, target: Target, budget: float) -> IntArray:
    """Return the candidates that are affordable and, for predictions beyond the data, not below their median compute.

    Small runs are cheap and would pin the law where it is far from the target: the worse, the more its form is wrong.
    """
    affordable = pool.flops <= budget
    seen, aim = observations.points.train_flops, target.points.train_flops
    large = pool.points.train_flops >= np.median(seen) * (1 - 1e-9)
    beyond = target.goal is Goal.PREDICTIONS and bool(np.min(aim) > np.max(seen)) and np.any(affordable & large)
    return np.flatnonzero(affordable & large if beyond else affordable)


def _data_rows(law: ScalingLaw, observations: Observations, columns: list[int], scale: FloatArray) -> FloatArray:
    loss, gradient = law.value_and_gradient(observations.points)
    return np.asarray(gradient[:, columns] / loss[:, None] * scale)


def _weighted(rows: FloatArray, observations: Observations, noise: Noise) -> FloatArray:
    """Return the rows by the inverse of their noise's covariance: rows of one run share that run's shift."""
    _, run, counts = np.unique(observations.run, return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(run, column, len(counts)) for column in rows.T], axis=1)
    one, shift = noise.observation**2, noise.run**2
    shared = shift / (one + counts * shift)
    return np.asarray((rows - (shared[:, None] * sums)[run]) / one)


def _prior(fit: Fit) -> FloatArray:
    """Return each free coefficient's prior standard deviation: of a uniform spread over its bounds."""
    spans = {term.name: fit.bounds.get(term.name, (term.lower, term.upper)) for term in fit.law.terms}
    return np.array([(spans[name][1] - spans[name][0]) / np.sqrt(12) for name in fit.free])


def _laws(fit: Fit) -> list[ScalingLaw]:
    """Return the fitted law and some of its resamples, evenly spaced."""
    law = replace(fit.law, resamples=None)
    if fit.law.resamples is None:
        return [law]
    take = np.linspace(0, len(fit.law.resamples) - 1, min(LAWS, len(fit.law.resamples))).round().astype(int)
    drawn = [dict(zip(law.names, fit.law.resamples[i].tolist(), strict=True)) for i in take]
    return [law, *(replace(law, coefficients=coefficients) for coefficients in drawn)]


def _planned(runs: RunCandidates, errors: list[float]) -> tuple[PlannedRun, ...]:
    p, spent = runs.points, np.cumsum(runs.flops)
    columns = (p.active, p.experts, p.recurrence, p.tokens, runs.flops, spent, np.array(errors))
    rows = zip(runs.models, *(column.tolist() for column in columns), strict=True)
    return tuple(PlannedRun(name, N, E, int(R), D, *rest) for name, N, E, R, D, *rest in rows)


def _check(budget: float, pool: RunCandidates) -> None:
    if not (np.isfinite(budget) and budget > 0):
        raise InputError(f"`budget` is {budget}", remedy="it should be finite and above zero, in FLOPs")
    if budget < pool.flops.min():
        cheapest = int(np.argmin(pool.flops))
        raise InputError(
            f"`budget` {format_count(budget)} FLOPs affords no run; the cheapest candidate, {pool.label(cheapest)}, "
            f"costs {format_count(pool.flops[cheapest])}"
        )
