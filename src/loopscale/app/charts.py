"""The tables behind the explorer's charts, around a plan: each from the function that the command line uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from loopscale.architecture import RUNGS
from loopscale.arrays import FloatArray
from loopscale.plan import (
    Budget,
    Plan,
    Space,
    experts_map,
    isoflop_over_experts,
    isoflop_over_recurrence,
    isoflop_over_size,
    ladder_space,
    recurrence_map,
)
from loopscale.tables import Table

WIDTHS = np.geomspace(512, 4096, 41)
MOST_DESIGNS = 2_000
"""Points that a scatter of designs may have."""


def chart_tables(found: Plan, kinds: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the columns of each chart by name."""
    return {kind: dict(CHARTS[kind](found).columns) for kind in dict.fromkeys(kinds)}


def _over_recurrence(found: Plan) -> Table:
    space = _ladder(found, experts=[found.choice.experts])
    return isoflop_over_recurrence(found.law, [_flops(found)], space, found.grid.eps, _token_limits(found))


def _over_experts(found: Plan) -> Table:
    space = _ladder(found, recurrences=[found.choice.recurrence])
    return isoflop_over_experts(found.law, [_flops(found)], space, found.grid.eps, _token_limits(found))


def _over_size(found: Plan) -> Table:
    passes = sorted({1, 2, 4, found.choice.recurrence})
    flops, limits = [_flops(found)], _token_limits(found)
    return isoflop_over_size(found.law, flops, [found.choice.experts], passes, WIDTHS, limits)


def _best_recurrence(found: Plan) -> Table:
    space = _ladder(found, experts=[found.choice.experts])
    return recurrence_map(found.law, _around(found), space, found.grid.eps, _token_limits(found))


def _best_experts(found: Plan) -> Table:
    passes = sorted({1, 2, 4, found.choice.recurrence})
    space, needed = _ladder(found, recurrences=passes), found.grid.memory_SKP
    memory = np.geomspace(needed.min() * 0.9, needed.max() * 1.1, 80)
    return experts_map(found.law, memory, found.grid.budget, space, found.grid.eps)


def _over_compute(found: Plan) -> Table:
    choice = found.choice
    one = _ladder(found, experts=[choice.experts], recurrences=[choice.recurrence], sizes=[choice.rung])
    return isoflop_over_recurrence(found.law, _around(found), one, found.grid.eps, _token_limits(found))


def _designs(found: Plan) -> Table:
    table = found.designs()
    if len(table) <= MOST_DESIGNS:
        return table
    fronts = zip(*(table.columns[f"on_{cost}_front"] for cost in ("memory", "inference")), strict=True)
    kept = [k for k, flags in enumerate(fronts) if any(flags) or table.columns["chosen"][k]]
    return Table({name: [column[k] for k in kept] for name, column in table.columns.items()})


CHARTS: dict[str, Callable[[Plan], Table]] = {
    "recurrence": _over_recurrence,
    "experts": _over_experts,
    "size": _over_size,
    "best-recurrence": _best_recurrence,
    "best-experts": _best_experts,
    "compute": _over_compute,
    "designs": _designs,
}


def _ladder(
    found: Plan,
    experts: list[float] | None = None,
    recurrences: list[int] | None = None,
    sizes: list[str] | None = None,
) -> Space:
    """Return the plan's space with some axes given; on a continuous one, the ladder's rungs stand for the sizes."""
    space = found.grid.space
    names = [name for name in sizes or space.names if name in RUNGS] or list(RUNGS)
    return ladder_space(
        names,
        experts or sorted(set(space.experts.ravel().tolist())),
        recurrences or space.recurrences.tolist(),
    )


def _flops(found: Plan) -> float:
    """Return the compute that charts are drawn at: the budget's, or what the choice takes of its given tokens."""
    return found.grid.budget.flops or found.choice.train_flops


def _around(found: Plan) -> FloatArray:
    return _flops(found) * np.geomspace(1e-2, 1e2, 25)


def _token_limits(found: Plan) -> Budget:
    """Return what limits the tokens besides compute: how many there are, and serving."""
    return replace(found.grid.budget, flops=_flops(found), tokens=None)
