"""The designs that no other beats in both loss and a cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopscale.figures.optima import MEMORIES
from loopscale.figures.style import COLOURS, LOSS, finish, legend, log_ticks, or_new, powers
from loopscale.tables import Table

_COSTS = {"memory": ("memory (GB)", 1e9), "inference": ("FLOPs for a generated token", 1.0)}


def front_table(plan: Mapping[str, Any], cost: str) -> Table:
    """Return a plan's front: ``design, cost, loss, chosen``, with the name of the cost in ``kind``."""
    choice = plan["choice"]
    name = f"{choice['rung']} E={choice['experts']:g} R={choice['recurrence']}"
    rows = plan["pareto"][cost]
    return Table.from_records(
        [
            {"kind": cost, "design": each["design"], "cost": each[cost], "loss": each["loss"],
             "chosen": each["design"] == name}
            for each in rows
        ]
    )  # fmt: skip


def draw_front(table: Table, axes: Any | None = None) -> Any:
    """Draw a front of :func:`front_table`, the choice starred where it lies on it."""
    axes = or_new(axes)
    kind = table.columns["kind"][0]
    label, unit = _COSTS[kind]
    cost = [value / unit for value in table.columns["cost"]]
    axes.step(cost, table.columns["loss"], where="post", color=COLOURS[0], linewidth=1.2)
    axes.scatter(cost, table.columns["loss"], s=12, color=COLOURS[0], zorder=3, label="unbeaten")
    for row in table.records():
        if row["chosen"]:
            axes.scatter(row["cost"] / unit, row["loss"], s=75, marker="*", color=COLOURS[1], edgecolors="k",
                         linewidths=0.6, zorder=4, label="chosen")  # fmt: skip
    axes.set_xscale("log")
    if kind == "memory":
        log_ticks(axes.xaxis, MEMORIES)
    else:
        powers(axes.xaxis)
    legend(axes)
    return finish(axes, f"Best loss by {kind} cost", label, LOSS)
