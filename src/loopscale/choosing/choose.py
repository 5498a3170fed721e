"""Which runs to train next: those that reduce the uncertainty at a target most per FLOP.

Optimal experimental design on the law's exact Jacobian. Each run adds one row of information; the target's variance
after it follows from a rank-one update, so thousands of candidates are weighed at once. What counts as the target is
either the predictions at some points (V-optimality) or the differences between a plan's choice and its rivals.
Shapes: Z laws, n candidates, p free coefficients, q targets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loopscale.choosing.candidates import RunCandidates, Target, ladder_candidates
from loopscale.choosing.runs import NextRuns, PlannedRun
from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_count
from loopscale.fitting import Fit, Noise, Observations
from loopscale.scaling import ScalingLaw

LAWS = 8
"""Resampled laws that the choice is averaged over: one estimate alone misplaces runs when it is poor."""
MOST_RUNS = 200
"""Runs after which the choice ends, even if some of the budget is left."""


def next_runs(
    fit: Fit,
    budget: float,
    target: Target,
    *,
    candidates: RunCandidates | None = None,
    noise: Noise | None = None,
    most: int = MOST_RUNS,
) -> NextRuns:
    """Choose runs greedily, each the largest relative fall of the target's variance per FLOP, within ``budget``.

    Averages over the law's resamples where it has them. Every coefficient has a weak prior as wide as its bounds, so
    that what the data leave open is wide but finite. No run is chosen twice; ``most`` limits their number.
    """
    pool = candidates or ladder_candidates(fit)
    _check(budget, pool)
    pool = pool.where(np.flatnonzero(pool.flops <= budget))
    spread = noise or Noise.of(fit)
    laws = _laws(fit)
    state = _State.start(fit, laws, pool, target, spread)
    chosen: list[int] = []
    errors, left = [state.standard_error], budget
    free = np.ones(len(pool), dtype=bool)
    while len(chosen) < most and np.any(usable := free & (pool.flops <= left)):
        worth = state.relative_fall() / pool.flops
        best = int(np.argmax(np.where(usable, worth, -np.inf)))
        state = state.after(best)
        chosen.append(best)
        errors.append(state.standard_error)
        free[best], left = False, left - pool.flops[best]
    runs = _planned(pool.where(np.array(chosen, dtype=np.int64)), errors[1:])
    return NextRuns(runs, target.goal, budget, errors[0], errors[-1], spread, len(pool), len(laws))


@dataclass(frozen=True, eq=False)
class _State:
    """The coefficients' covariance under each law, in units of their priors, and what follows from it."""

    rows_Znp: FloatArray
    """Gradients of the candidates' ln loss."""
    target_Zqp: FloatArray
    covariance_Zpp: FloatArray
    leverage_Znp: FloatArray
    """Candidate rows times covariance."""
    noise: float

    @classmethod
    def start(cls, fit: Fit, laws: list[ScalingLaw], pool: RunCandidates, target: Target, noise: Noise) -> _State:
        scale = _prior(fit)
        columns = [fit.law.names.index(name) for name in fit.free]
        rows, goals, covariances = [], [], []
        for law in laws:
            loss, gradient = law.value_and_gradient(pool.points)
            rows.append(gradient[:, columns] / loss[:, None] * scale)
            goals.append(target.rows(law.value_and_gradient(target.points)[1][:, columns] * scale))
            covariances.append(_covariance(law, fit.observations, columns, scale, noise))
        rows_Znp, covariance_Zpp = np.stack(rows), np.stack(covariances)
        return cls(rows_Znp, np.stack(goals), covariance_Zpp, rows_Znp @ covariance_Zpp, noise.new_run)

    @property
    def variance_Z(self) -> FloatArray:
        """The target's mean variance under each law."""
        variance_Zq = np.einsum("zqp,zpr,zqr->zq", self.target_Zqp, self.covariance_Zpp, self.target_Zqp)
        return np.asarray(variance_Zq.mean(axis=1))

    @property
    def standard_error(self) -> float:
        """At the fitted law, which comes first."""
        return float(np.sqrt(max(self.variance_Z[0], 0.0)))

    def relative_fall(self) -> FloatArray:
        """Return, for each candidate, the share of the target's variance that it would remove, averaged over laws."""
        seen_Zn = self.noise + np.einsum("znp,znp->zn", self.leverage_Znp, self.rows_Znp)
        shared_Znq = self.leverage_Znp @ self.target_Zqp.transpose(0, 2, 1)
        fall_Zn = (shared_Znq**2).mean(axis=2) / seen_Zn
        return np.asarray((fall_Zn / self.variance_Z[:, None]).mean(axis=0))

    def after(self, run: int) -> _State:
        """Return the state once that candidate is observed: a rank-one update."""
        along_Zp = self.leverage_Znp[:, run]
        seen_Z = self.noise + np.einsum("zp,zp->z", along_Zp, self.rows_Znp[:, run])
        step_Zp = along_Zp / seen_Z[:, None]
        met_Zn = np.einsum("znp,zp->zn", self.rows_Znp, along_Zp)
        return replace(
            self,
            covariance_Zpp=self.covariance_Zpp - along_Zp[:, :, None] * step_Zp[:, None, :],
            leverage_Znp=self.leverage_Znp - met_Zn[:, :, None] * step_Zp[:, None, :],
        )


def _covariance(
    law: ScalingLaw, observations: Observations, columns: list[int], scale: FloatArray, noise: Noise
) -> FloatArray:
    """Return the covariance that the data and the prior leave, rows of one run sharing that run's shift."""
    loss, gradient = law.value_and_gradient(observations.points)
    rows = gradient[:, columns] / loss[:, None] * scale
    _, run, counts = np.unique(observations.run, return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(run, column, len(counts)) for column in rows.T], axis=1)
    one, shift = noise.observation**2, noise.run**2
    shared = shift / (one + counts * shift)
    information = (rows.T @ rows - (sums * shared[:, None]).T @ sums) / one
    return np.asarray(np.linalg.inv(np.eye(len(scale)) + information), dtype=np.float64)


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
