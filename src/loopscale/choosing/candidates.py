"""Runs that could be trained next, with what each costs."""

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
from loopscale.scaling import Counting, Points

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
        p = self.points
        given = (p.active, p.tokens, p.recurrence, p.experts, p.loop_block, p.active / p.m)
        names = tuple(self.models[int(i)] for i in chosen)
        return RunCandidates(names, Points(*(value[chosen] for value in given)), self.flops[chosen])

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

    A law without experts or recurrence learns nothing from other E or R, so those stay at 1. Rungs are those near the
    sizes of the data, unless named. Tokens range from half the least to twice the most seen, and ``ratio`` limits
    tokens per parameter: to the range of the data where it is not given. Runs far outside cost little but tell little.
    """
    data, law = fit.observations, fit.law
    p = data.points
    low, high = (float(end) for end in ((p.tokens / p.active).min(), (p.tokens / p.active).max()))
    limits = (low if ratio[0] is None else ratio[0], high if ratio[1] is None else ratio[1])
    if not 0 < limits[0] <= limits[1]:
        raise InputError(f"tokens per parameter from {limits[0]:g} to {limits[1]:g}: the first should be the smaller")
    if tokens is None:
        tokens = np.geomspace(p.tokens.min() / 2, p.tokens.max() * 2, TOKEN_LEVELS).tolist()
    E = tuple(experts or RUNG_EXPERTS) if law.outer.uses_experts else (1,)
    R = tuple(recurrences or RECURRENCES) if law.mapping.loops else (1,)
    names = rungs or [name for name in RUNGS if p.active.min() / NEAR < rung(name).active < p.active.max() * NEAR]
    pools = (
        [run_candidates([rung(name, count) for name in names for count in E], R, tokens, data.counts)] if names else []
    )
    if rungs is None and not all(np.isclose(p.active[:, None], [rung(name).active for name in RUNGS], 1e-3).any(1)):
        pools.append(_seen_models(data, tokens))
    pool = _joined(pools)
    share = pool.points.tokens / pool.points.active
    inside = np.flatnonzero((share >= limits[0] * (1 - 1e-9)) & (share <= limits[1] * (1 + 1e-9)))
    if not len(inside):
        raise InputError(f"no candidate has {limits[0]:.3g} to {limits[1]:.3g} tokens per parameter; widen the range")
    return pool.where(inside)


NEAR = 4.0
"""Rungs up to this factor outside the sizes of the data are candidates."""


def _seen_models(data: Observations, tokens: Sequence[float]) -> RunCandidates:
    """Return the models of the data at every token count."""
    p = data.points
    total = p.active / p.m if p.total is not None or np.all(p.experts == 1) else p.active * p.experts
    models = np.unique(np.column_stack([p.active, p.recurrence, p.experts, p.loop_block, total]), axis=0)
    rows = np.repeat(models, len(tokens), axis=0)
    points = Points(rows[:, 0], np.tile(tokens, len(models)), rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 4])
    return RunCandidates(tuple(format_count(size) for size in rows[:, 0]), points, points.train_flops)


def _joined(pools: Sequence[RunCandidates]) -> RunCandidates:
    names = tuple(name for pool in pools for name in pool.models)
    return RunCandidates(
        names, stacked([pool.points for pool in pools]), np.concatenate([pool.flops for pool in pools])
    )


def read_candidates(path: str | Path) -> RunCandidates:
    """Read runs to choose from: a table with N, D, where they matter E, R, N_loop, N_total, and ``cost`` in FLOPs."""
    table = read_table(path)
    costs = {name: cells for name, cells in table.columns.items() if name.strip().lower() in ("cost", "flops")}
    # Losses are what these runs would tell; every other column is read as in a sweep.
    known = {
        name: cells for name, cells in table.columns.items() if name.strip().lower() not in ("cost", "flops", "loss")
    }
    rows = read_rows(replace(table, columns={**known, "loss": [1.0] * len(table)}), {}, {}, strict=True)
    if len(rows.loss) != len(table):
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

        A pass or more experts that do not pay under this law may pay under the next; no new run lifts a limit.
        """
        choice = plan.choice
        designs = {_key(design): design for design in (*plan.rivals, *plan.candidates[:limit])}
        designs.pop(_key(choice), None)
        near = [design for design in designs.values() if not design.misses_limit]
        near.sort(key=lambda design: abs(design.loss - choice.loss))
        if goal is Goal.CHOICE and not near:
            raise InputError("the plan lists no rival of its choice", remedy="aim at `goal` predictions instead")
        chosen = (choice, *near[:rivals])
        names = ("active", "tokens", "recurrence", "experts", "loop", "total", "embedding")
        columns = {name: np.array([getattr(design, name) for design in chosen]) for name in names}
        return cls(counts.points(**columns), goal)

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
