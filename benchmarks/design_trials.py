"""A simulated experiment: do chosen runs beat a random choice, the cheapest runs and a full grid at equal compute?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loopscale.architecture import rung
from loopscale.choosing import Goal, RunCandidates, Target, next_runs, run_candidates
from loopscale.fitting import Fit, Observations, fit
from loopscale.fitting.data.public import stacked
from loopscale.scaling import Points, ScalingLaw, published

TARGET_FLOPS = 5e21
TARGET_DESIGNS = (("1.0B", 8, 2), ("1.0B", 8, 3), ("1.0B", 8, 1), ("1.6B", 4, 1), ("0.6B", 16, 3), ("1.0B", 4, 2))
"""The paper's joint optimum at 5e21 FLOPs and 3 GB, and designs near it in loss."""


@dataclass(frozen=True)
class DesignTrial:
    """What one way of choosing runs brought, in one simulated world."""

    seed: int
    strategy: str
    runs: int
    flops: float
    error: float
    """Root-mean-square error of the refitted law at the target (of the differences, for a choice), in nats."""
    expected: float | None
    """The standard error that ``next_runs`` announced, where it did."""


def simulate_design(
    seed: int,
    *,
    goal: Goal = Goal.PREDICTIONS,
    noise: float = 0.0037,
    resamples: int = 8,
    budget_share: float = 1.0,
    growth: float | None = None,
) -> list[DesignTrial]:
    """Start from a small sweep, spend the same compute in four ways, refit, and compare errors at the target.

    The budget is what the grid costs (the grid is left out for another ``budget_share``). Random runs and those of
    ``next_runs`` come from one pool; ``cheapest`` fills the budget from the cheapest up. The truth has the form that
    is fitted; ``growth=0`` lets ``next_runs`` know it.
    """
    random, truth = np.random.default_rng(seed), published()
    pool, grid = _pool(), _grid()
    first = fit(_observed(_start(), truth, noise, random, "start"), resamples=0)
    budget, target = float(grid.flops.sum()) * budget_share, Target(_target_points(), goal)
    design = next_runs(first.resample(resamples, seed=seed), budget, target, candidates=pool, growth=growth)
    chosen = {(run.model, run.experts, run.recurrence, run.tokens) for run in design.runs}
    ways = {
        "nothing": pool.where(np.array([], dtype=np.int64)),
        "next_runs": pool.where(np.flatnonzero([_key(pool, i) in chosen for i in range(len(pool))])),
        "random": _affordable(pool, random.permutation(len(pool)), budget),
        "cheapest": _affordable(pool, np.argsort(pool.flops), budget),
        **({"grid": grid} if budget_share == 1 else {}),
    }
    return [
        DesignTrial(seed, name, len(runs), float(runs.flops.sum()), _error(first, runs, truth, target, noise, random),
                    design.after if name == "next_runs" else None)
        for name, runs in ways.items()
    ]  # fmt: skip


def _runs(rungs: Sequence[str], experts: Sequence[int], R: Sequence[int], D: Sequence[float]) -> RunCandidates:
    return run_candidates([rung(name, E) for name in rungs for E in experts], R, D, published().counts)


def _start() -> RunCandidates:
    return _runs(("0.3B", "0.6B"), (1, 4, 16), (1, 2, 4), (1e11, 3e11))


def _pool() -> RunCandidates:
    levels = (5e10, 1e11, 2e11, 3e11, 4e11, 5e11)
    return _runs(("0.3B", "0.6B", "1.0B"), (1, 2, 4, 8, 16), (1, 2, 3, 4, 6, 8), levels)


def _grid() -> RunCandidates:
    """Return every combination of some of the pool's levels."""
    return _runs(("0.3B", "1.0B"), (1, 4, 16), (1, 3, 6), (5e10, 2e11))


def _target_points() -> Points:
    models = [(rung(name, E), R) for name, E, R in TARGET_DESIGNS]
    return stacked(model.points(np.array([TARGET_FLOPS / model.train_flops_per_token(R)]), R) for model, R in models)


def _affordable(pool: RunCandidates, order: np.ndarray, budget: float) -> RunCandidates:
    """Take runs in that order, each one that still fits."""
    taken, left = [], budget
    for i in order:
        if pool.flops[i] <= left:
            taken.append(i)
            left -= pool.flops[i]
    return pool.where(np.array(taken))


def _observed(
    runs: RunCandidates, truth: ScalingLaw, noise: float, random: np.random.Generator, name: str
) -> Observations:
    return Observations(
        points=runs.points,
        loss=truth(runs.points) + noise * random.standard_normal(len(runs)),
        run=np.array([f"{name}-{i}" for i in range(len(runs))], dtype=np.str_),
        source=f"simulated from {truth.name}",
        counts=truth.counts,
    )


def _error(
    first: Fit, runs: RunCandidates, truth: ScalingLaw, target: Target, noise: float, random: np.random.Generator
) -> float:
    law = first.law
    if len(runs):
        old, new = first.observations, _observed(runs, truth, noise, random, "new")
        joined = Observations(
            stacked([old.points, new.points]), np.concatenate([old.loss, new.loss]),
            np.concatenate([old.run, new.run]), old.source, old.counts,
        )  # fmt: skip
        law = fit(joined, resamples=0).law
    miss = (law(target.points) - truth(target.points))[:, None]
    return float(np.sqrt(np.mean(target.rows(miss) ** 2)))


def _key(pool: RunCandidates, i: int) -> tuple[str, float, int, float]:
    p = pool.points
    return (pool.models[i], float(p.experts[i]), int(p.recurrence[i]), float(p.tokens[i]))
