"""Figures of the planner's tables."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from loopscale.figures.style import COLOURS, MARKERS, finish
from loopscale.tables import Table


def draw_isoflop_over_recurrence(axes: Any, table: Table) -> None:
    """Draw loss against R at fixed compute; a star marks R*, hollow points are extrapolated."""
    rows = sorted(table.records(), key=lambda row: (*_curve(row), row["recurrence"]))
    for place, ((rung, experts, _), group) in enumerate(groupby(rows, _curve)):
        curve, colour = list(group), COLOURS[place % len(COLOURS)]
        R, loss = [row["recurrence"] for row in curve], [row["loss"] for row in curve]
        axes.plot(R, loss, color=colour, linewidth=1.2, label=f"{rung}, E={experts:g}")
        filled = [colour if not row["extrapolated"] else "none" for row in curve]
        axes.scatter(R, loss, s=14, color=filled, edgecolors=colour, marker=MARKERS[place % len(MARKERS)], zorder=3)
        best = next(row for row in curve if row["best"])
        axes.scatter([best["recurrence"]], [best["loss"]], s=110, marker="*", color=colour, edgecolors="k", zorder=4)
    axes.legend(fontsize=7, frameon=False, ncols=2, loc="center right", bbox_to_anchor=(1.0, 0.68))
    finish(axes, f"Loss at {rows[0]['flops']:.0e} FLOPs; ★ is R*", "recurrence R", "predicted loss (nats/token)")


def draw_joint_optimum(axes: Any, table: Table) -> None:
    """Draw the best design's loss against memory, each step labelled (size, E, R)."""
    rows = [row for row in table.records() if row["rung"]]
    axes.step([row["memory"] / 1e9 for row in rows], [row["loss"] for row in rows], where="post", color=COLOURS[0])
    for place, (name, group) in enumerate(groupby(rows, _design)):
        row = next(group)
        at = (row["memory"] / 1e9, row["loss"])
        colour = COLOURS[row["recurrence"] % len(COLOURS)]
        axes.scatter(*at, s=16, color=colour, zorder=3, label=f"R = {row['recurrence']}")
        if place % 2 == 0:
            text = f"{name[0]} E{name[1]:g} R{name[2]}"
            axes.annotate(
                text, (row["memory"] / 1e9, row["loss"]), fontsize=6, xytext=(3, 3), textcoords="offset points"
            )
    axes.set_xscale("log")
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # one entry for each R
    axes.legend([named[label] for label in sorted(named)], sorted(named), fontsize=7, frameon=False)
    finish(axes, "Best design by memory (size, E, R)", "weight memory (GB)", "predicted loss (nats/token)")


def _curve(row: dict[str, Any]) -> tuple[str, float, float]:
    return row["rung"], row["experts"], row["flops"]


def _design(row: dict[str, Any]) -> tuple[str, float, int]:
    return row["rung"], row["experts"], row["recurrence"]
