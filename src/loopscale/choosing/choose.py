"""Which runs to train next: those that reduce the uncertainty at a target most per FLOP.

Optimal experimental design on the law's exact Jacobian. Each run adds one row of information; the target's variance
after it follows from a rank-one update, so thousands of candidates are weighed at once. What counts as the target is
either the predictions at some points (V-optimality) or the differences between a plan's choice and its rivals.
Shapes: Z laws, n candidates, p free coefficients, q targets.
"""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from rich.console import Console
from rich.table import Table as RichTable

from loopscale.choosing.candidates import Goal, RunCandidates, Target, ladder_candidates
from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.files import read_json, write_json
from loopscale.core.quantities import counted, format_count
from loopscale.core.schemas import File, Record, parse
from loopscale.core.tables import Table
from loopscale.fitting.data.read import Observations
from loopscale.fitting.diagnose import Noise
from loopscale.fitting.fitting import Fit
from loopscale.scaling import ScalingLaw

LAWS = 8
"""Resampled laws that the choice is averaged over: one estimate alone misplaces runs when it is poor."""
SCHEMA = 1
MOST_RUNS = 200
"""Runs after which the choice ends, even if some of the budget is left."""


@dataclass(frozen=True)
class PlannedRun:
    """A run to train, in the order of choice."""

    model: str
    active: float
    experts: float
    recurrence: int
    tokens: float
    flops: float
    cumulative_flops: float
    standard_error: float
    """Expected at the target once this run and those before it are trained, in nats."""
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


class NoiseRecord(Record):
    """Standard deviations of ln loss."""

    observation: float = Field(ge=0)
    run: float = Field(ge=0)
    """Of the shift that all observations of a run share."""


class NextRunsFile(File):
    """Runs to train next, as ``loopscale next --json`` prints them and ``NextRuns.save`` writes them."""

    KIND, VERSION = "next-runs", SCHEMA

    runs: list[PlannedRun]
    goal: Goal
    """What the runs should make certain."""
    budget: float = Field(gt=0)
    """FLOPs."""
    flops: float | None = None
    """Of all runs together."""
    unspent: float | None = None
    """FLOPs of the budget that no run uses."""
    below_noise: bool | None = None
    """Whether the expected gain is below the noise of a single run."""
    before: float = Field(ge=0)
    """Standard error at the target now, in nats."""
    after: float = Field(ge=0)
    """The same once all runs are trained."""
    noise: NoiseRecord
    candidates: int = Field(ge=0)
    """How many runs were weighed."""
    laws: int = Field(ge=1)
    """How many laws the choice was averaged over."""


@dataclass(frozen=True, repr=False)
class NextRuns:
    """Runs to train next and what they should bring."""

    runs: tuple[PlannedRun, ...]
    goal: Goal
    budget: float
    before: float
    """Standard error at the target now, in nats: the root of the mean variance."""
    after: float
    noise: Noise
    candidates: int
    laws: int
    """How many laws the choice was averaged over."""

    @property
    def flops(self) -> float:
        """What all runs cost together."""
        return sum(run.flops for run in self.runs)

    @property
    def unspent(self) -> float:
        """FLOPs of the budget that no chosen run uses."""
        return self.budget - self.flops

    @property
    def below_noise(self) -> bool:
        """Whether the runs should reduce the standard error by less than the noise of a single run."""
        return bool(self.before - self.after < np.sqrt(self.noise.new_run))

    def table(self) -> Table:
        """Return one row for each run."""
        return Table.from_records([asdict(run) for run in self.runs])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "kind": "next-runs",
            "schema": SCHEMA,
            "goal": self.goal.value,
            "budget": self.budget,
            "flops": self.flops,
            "unspent": self.unspent,
            "below_noise": self.below_noise,
            "before": self.before,
            "after": self.after,
            "noise": asdict(self.noise),
            "candidates": self.candidates,
            "laws": self.laws,
            "runs": [asdict(run) for run in self.runs],
        }

    def save(self, path: str | Path) -> None:
        """Write the choice as JSON, for :meth:`load` and for a sweep file's ``next_runs``."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> NextRuns:
        """Read a choice that :meth:`save` wrote."""
        return cls.from_dict(read_json(path), str(path))

    @classmethod
    def from_dict(cls, data: object, where: str = "next runs") -> NextRuns:
        """Read a choice from the content of its file; ``where`` names its origin in errors."""
        file = parse(NextRunsFile, data, where)
        noise = Noise(file.noise.observation, file.noise.run)
        return cls(tuple(file.runs), file.goal, file.budget, file.before, file.after, noise, file.candidates, file.laws)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return (
            f"<NextRuns: {counted(len(self.runs), 'run')} for {format_count(self.flops)} FLOPs, standard error "
            f"{self.before:.4f} to {self.after:.4f}>"
        )

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def summary(self) -> str:
        """Return the runs as a table, and what they should bring, as plain text."""
        grid = RichTable("run", "model", "E", "R", "tokens", "FLOPs", "FLOPs so far", "standard error")
        for order, run in enumerate(self.runs, 1):
            counts = (format_count(count) for count in (run.tokens, run.flops, run.cumulative_flops))
            grid.add_row(
                str(order), run.model, f"{run.experts:g}", str(run.recurrence), *counts, f"{run.standard_error:.5f}"
            )
        out = io.StringIO()
        Console(file=out, width=120).print(grid)
        what = "loss differences to the rivals" if self.goal is Goal.CHOICE else "predictions at the target"
        return (
            f"{out.getvalue().rstrip()}\nStandard error of the {what}: {self.before:.5f} now, {self.after:.5f} after "
            f"{counted(len(self.runs), 'run')} for {format_count(self.flops)} of {format_count(self.budget)} FLOPs "
            f"({format_count(self.unspent)} unspent)."
            + (
                f"\nThe expected gain is below the noise of one run ({np.sqrt(self.noise.new_run):.4f} in ln loss): "
                "these runs may not change the plan."
                if self.below_noise
                else ""
            )
        )


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
        raise InputError(f"budget is {budget}; it should be finite and above zero, in FLOPs")
    if budget < pool.flops.min():
        cheapest = int(np.argmin(pool.flops))
        raise InputError(
            f"budget {format_count(budget)} FLOPs affords no run; the cheapest candidate, {pool.label(cheapest)}, "
            f"costs {format_count(pool.flops[cheapest])}"
        )


MOST_PAIRS = 10_000


def pairs_needed(difference: float, spread: float, *, power: float = 0.8, level: float = 0.05) -> int:
    """Return how many pairs of seeds a two-sided paired t-test needs to find ``difference`` with that ``power``.

    ``spread`` is the standard deviation of the paired difference between two recipes over seeds, in the same unit.
    """
    _check_pairs(difference, spread, power, level)
    low, high = 1, 2
    while _paired_power(high, difference / spread, level) < power:
        low, high = high, 2 * high
        if high > MOST_PAIRS:
            raise InputError(
                f"a difference of {difference:g} at a spread of {spread:g} needs over {MOST_PAIRS:,} pairs"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _paired_power(middle, difference / spread, level) >= power else (middle, high)
    return high


def _paired_power(pairs: int, effect: float, level: float) -> float:
    from scipy import stats

    shift, limit = effect * np.sqrt(pairs), stats.t.ppf(1 - level / 2, pairs - 1)
    return float(stats.nct.sf(limit, pairs - 1, shift) + stats.nct.cdf(-limit, pairs - 1, shift))


def _check_pairs(difference: float, spread: float, power: float, level: float) -> None:
    for name, value in (("difference", difference), ("spread", spread)):
        if not (np.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value:g}; it should be above zero")
    for name, value in (("power", power), ("level", level)):
        if not 0 < value < 1:
            raise InputError(f"{name} is {value:g}; it should be between 0 and 1")
