"""Candidates for the next runs, with the cost of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product
from pathlib import Path

import numpy as np

from loopscale.architecture import RUNG_EXPERTS, RUNGS, Architecture, rung
from loopscale.core.arrays import FloatArray, IntArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import count_of, format_count
from loopscale.fitting import Fit, Observations
from loopscale.fitting.data.public import stacked
from loopscale.fitting.data.readers import read_table
from loopscale.fitting.data.rows import read_rows
from loopscale.planning import Design, Plan
from loopscale.scaling import Counting, Points, ScalingLaw
from loopscale.scaling.optimum import compute_optimal
from loopscale.scaling.variables import default_variables

RECURRENCES = (1, 2, 3, 4, 6, 8)
TOKEN_LEVELS = 9


@dataclass(frozen=True, eq=False)
class RunCandidates:
    """Runs to choose from: one model, one recurrence and one token count each, seen once, at its end."""

    models: tuple[str, ...]
    points: Points
    """One-dimensional, counted as the law counts."""
    flops: FloatArray
    """Training compute of each, 6 N_unroll D (embeddings never counted)."""

    def __len__(self) -> int:
        return len(self.models)

    def where(self, chosen: IntArray) -> RunCandidates:
        """Return the chosen runs, in the order given."""
        names = tuple(self.models[int(i)] for i in chosen)
        return RunCandidates(names, self.points.rows(chosen), self.flops[chosen])

    def label(self, i: int) -> str:
        """Name one run in a word."""
        p = self.points
        return f"{self.models[i]} E={p.experts[i]:g} R={p.recurrence[i]:g} D={p.tokens[i] / 1e9:.3g}B"


def run_candidates(
    models: Sequence[Architecture], recurrences: Sequence[int], tokens: Sequence[float], counts: Counting
) -> RunCandidates:
    """Return every run of ``models`` x ``recurrences`` x ``tokens``."""
    runs = list(product(models, recurrences, tokens))
    if not runs:
        raise InputError("no run to choose from", remedy="give at least one model, one recurrence and one token count")
    return RunCandidates(
        models=tuple(model.name for model, _, _ in runs),
        points=stacked(model.points(np.array([D]), R, counts) for model, R, D in runs),
        flops=np.array([float(model.train_flops_per_token(R)) * D for model, R, D in runs]),
    )


def ladder_candidates(
    fit: Fit,
    *,
    rungs: Sequence[str] | None = None,
    experts: Sequence[float] | None = None,
    recurrences: Sequence[int] | None = None,
    tokens: Sequence[float] | None = None,
    ratio: tuple[float | None, float | None] = (None, None),
) -> RunCandidates:
    """Return runs of the paper's ladder and of the models in the data, along the axes that the law has.

    Other E or R say nothing about a law without experts or recurrence, so those stay at 1. Rungs are those near the
    sizes of the data, unless named. Tokens range from half the least to twice the most seen, and ``ratio`` limits
    tokens per parameter: to the range of the data by default. Runs far outside it cost little, and are worth little.
    """
    data, law = fit.observations, fit.law
    p = data.points
    low, high = (float(end) for end in ((p.tokens / p.active).min(), (p.tokens / p.active).max()))
    limits = (low if ratio[0] is None else ratio[0], high if ratio[1] is None else ratio[1])
    if not 0 < limits[0] <= limits[1]:
        raise InputError(
            f"tokens per parameter are from {limits[0]:g} to {limits[1]:g}",
            field="ratio", remedy="give the smaller number first",
        )  # fmt: skip
    if tokens is None:
        tokens = np.geomspace(p.tokens.min() / 2, p.tokens.max() * 2, TOKEN_LEVELS).tolist()
    E = tuple(experts or RUNG_EXPERTS) if law.outer.uses_experts else (1,)
    R = tuple(recurrences or RECURRENCES) if law.mapping.loops else (1,)
    names = rungs or [name for name in RUNGS if p.active.min() / NEAR < rung(name).active < p.active.max() * NEAR]
    pools = (
        [run_candidates([rung(name, count) for name in names for count in E], R, tokens, data.counts)] if names else []
    )
    if rungs is None and not on_ladder(data):
        models = _models(p)
        pools.append(_pool(np.repeat(models, len(tokens), axis=0), np.tile(tokens, len(models))))
    pool = _joined(pools)
    share = pool.points.tokens / pool.points.active
    inside = np.flatnonzero((share >= limits[0] * (1 - 1e-9)) & (share <= limits[1] * (1 + 1e-9)))
    if not len(inside):
        raise InputError(
            f"no candidate has {limits[0]:.3g} to {limits[1]:.3g} tokens per parameter",
            field="ratio", remedy="widen the range",
        )  # fmt: skip
    return pool.where(inside)


NEAR = 4.0
"""Rungs up to this factor outside the sizes of the data are candidates."""


def on_ladder(data: Observations) -> bool:
    """Tell whether every model of the data is a rung of the paper's ladder."""
    sizes = [rung(name).active for name in RUNGS]
    return bool(np.isclose(data.points.active[:, None], sizes, 1e-3).any(axis=1).all())


def own_candidates(fit: Fit, budget: float, most: float) -> RunCandidates:
    """Return runs of the models in the data and of the same models enlarged, up to ``most`` active parameters.

    The largest models are enlarged in steps of a factor of two, in all their parts, while ``budget`` affords them.
    Tokens are those of the tokens per parameter in the data.
    """
    p = fit.observations.points
    ratios = np.geomspace((p.tokens / p.active).min(), (p.tokens / p.active).max(), RATIO_LEVELS)
    models = _models(p)
    factors = 2.0 ** np.arange(1, 1 + max(0, int(np.log2(max(most / p.active.max(), 1.0)))))
    grown = [model * [factor, 1.0, 1.0, factor, factor] for model in _largest(models) for factor in factors]
    rows = np.repeat(np.vstack([models, *grown]) if grown else models, len(ratios), axis=0)
    pool = _pool(rows, rows[:, 0] * np.tile(ratios, len(rows) // len(ratios)))
    affordable = np.flatnonzero(pool.flops <= budget)
    return pool.where(affordable) if len(affordable) else pool


RATIO_LEVELS = 5
"""Token counts of each model among ``own_candidates``."""


def _largest(models: FloatArray) -> list[FloatArray]:
    """Return the largest model for each number of passes and experts."""
    kinds = dict.fromkeys((float(row[1]), float(row[2])) for row in models)
    return [max((row for row in models if (row[1], row[2]) == kind), key=lambda row: row[0]) for kind in kinds]


def default_candidates(fit: Fit, budget: float, target: Target) -> RunCandidates:
    """Return runs to choose from: of the ladder where the data are on it, otherwise of the user's own sizes."""
    if on_ladder(fit.observations):
        return ladder_candidates(fit)
    return own_candidates(fit, budget, float(target.points.active.max()))


def _models(p: Points) -> FloatArray:
    """Return the distinct models of some runs, one row each: N_act, R, E, N_loop and N_total."""
    total = p.active / p.m if p.total is not None or np.all(p.experts == 1) else p.active * p.experts
    return np.asarray(np.unique(np.column_stack([p.active, p.recurrence, p.experts, p.loop_block, total]), axis=0))


def _pool(rows: FloatArray, tokens: FloatArray) -> RunCandidates:
    """Return runs of models, each on its tokens, named by their size."""
    active, recurrence, experts, loop, total = rows.T
    points = Points(active, tokens, recurrence, experts, loop, total)
    return RunCandidates(tuple(format_count(size) for size in active), points, points.train_flops)


def _joined(pools: Sequence[RunCandidates]) -> RunCandidates:
    names = tuple(name for pool in pools for name in pool.models)
    return RunCandidates(
        names, stacked([pool.points for pool in pools]), np.concatenate([pool.flops for pool in pools])
    )


def read_candidates(path: str | Path) -> RunCandidates:
    """Read runs to choose from: a table with N, D, where they matter E, R, N_loop, N_total, and ``cost`` in FLOPs."""
    table = read_table(path)
    costs = {name: cells for name, cells in table.columns.items() if name.strip().lower() in ("cost", "flops")}
    # Losses are what these runs would measure; every other column is read as in a sweep.
    other = {
        name: cells for name, cells in table.columns.items() if name.strip().lower() not in ("cost", "flops", "loss")
    }
    rows = read_rows(replace(table, columns={**other, "loss": [1.0] * len(table)}), {}, {}, strict=True)
    if len(rows) != len(table):
        raise InputError("some rows repeat another", where=str(path), remedy="list each candidate once")
    cost = next(iter(costs.values()), None)
    flops = rows.points.train_flops if cost is None else np.array([count_of(cell, f"{path}: cost") for cell in cost])
    names = rows.extra.get("model", rows.extra.get("run", np.array([format_count(N) for N in rows.points.active])))
    return RunCandidates(tuple(str(name) for name in names), rows.points, flops)


class Goal(Enum):
    """What the new runs should make certain."""

    PREDICTIONS = "predictions"
    """The mean variance of the losses at the target points."""
    CHOICE = "choice"
    """The mean variance of the loss differences between the first target point and the others."""


@dataclass(frozen=True, eq=False)
class Target:
    """Where the law has to be right."""

    points: Points
    """One-dimensional; for a choice, the chosen design comes first."""
    goal: Goal

    def __post_init__(self) -> None:
        if len(self.points.shape) != 1 or self.points.shape[0] < (2 if self.goal is Goal.CHOICE else 1):
            raise InputError(
                f"target: points have shape {self.points.shape}; give a list of them, and for a choice two or more"
            )

    @classmethod
    def of_plan(
        cls, plan: Plan, counts: Counting, goal: Goal = Goal.CHOICE, *, rivals: int = 6, limit: int = 20
    ) -> Target:
        """Take a plan's choice, and of its first ``limit`` candidates those nearest in loss that no limit rules out.

        A pass or more experts that do not pay under this law may pay under the next; no new run lifts a limit. Rivals
        differ from the choice by eps or more: between designs within eps there is nothing to decide.
        """
        choice = plan.choice
        designs = {_key(design): design for design in (*plan.rivals, *plan.candidates[:limit])}
        designs.pop(_key(choice), None)
        usable = [design for design in designs.values() if not design.misses_limit]
        tie = plan.eps or plan.law_eps or 0.0
        near = [design for design in usable if abs(design.loss - choice.loss) >= tie]
        near = near or [design for design in plan.rivals if not design.misses_limit]  # all within a tie
        near.sort(key=lambda design: abs(design.loss - choice.loss))
        if goal is Goal.CHOICE and not near:
            raise InputError("the plan lists no rival of its choice", remedy="aim at `goal` predictions instead")
        chosen = (choice, *near[:rivals])
        names = ("active", "tokens", "recurrence", "experts", "loop", "total", "embedding")
        columns = {name: np.array([getattr(design, name) for design in chosen]) for name in names}
        return cls(counts.points(**columns), goal)

    @classmethod
    def of(cls, target: Target | Plan | str | Path, counts: Counting, goal: Goal = Goal.CHOICE) -> Target:
        """Take a target as it is, a plan, or the file of a plan."""
        if isinstance(target, Target):
            return target
        return cls.of_plan(target, counts, goal) if isinstance(target, Plan) else cls.of_file(target, counts, goal)

    @classmethod
    def of_run(cls, law: ScalingLaw, params: float, tokens: float) -> Target:
        """Aim at the loss of one run of N parameters, counted as the law counts, on D tokens."""
        E, R = default_variables(law)
        N, D, one = np.array([params], dtype=np.float64), np.array([tokens], dtype=np.float64), np.ones(1)
        return cls(Points(N, D, R * one, E * one, N if R > 1 else 0 * N, N * E), Goal.PREDICTIONS)

    @classmethod
    def of_flops(cls, law: ScalingLaw, flops: float) -> Target:
        """Aim at the loss of the size that the law finds best for a training compute."""
        E, R = default_variables(law)
        if E > 1 or R > 1:
            raise InputError(
                f"law {law.name} is of looped or sparse models, whose best design at a compute is a plan",
                field="flops",
                remedy="make it with `loopscale plan` and give its file",
            )
        best = compute_optimal(law, flops)
        return cls.of_run(law, best.size, best.tokens)

    @classmethod
    def of_file(cls, path: str | Path, counts: Counting, goal: Goal = Goal.CHOICE) -> Target:
        """Take a plan file."""
        plan = Plan.load(path)
        try:
            return cls.of_plan(plan, counts, goal)
        except InputError as error:
            raise error.within(str(path)) from None

    def rows(self, gradient: FloatArray) -> FloatArray:
        """Return the linear forms in the coefficients whose variance is to shrink."""
        return gradient[1:] - gradient[0] if self.goal is Goal.CHOICE else gradient


def _key(design: Design) -> tuple[float, ...]:
    return (design.active, design.total, design.experts, design.recurrence)
