"""Loss at fixed compute: against size, and against recurrence with R* starred."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopscale.figures.marks import draw_band, draw_curve, groups, shade_extrapolated
from loopscale.figures.style import LOSS, RECURRENCE, colour, finish, legend, log_ticks, marker, or_new, scientific
from loopscale.tables import Table

BILLION = 1e9
SIZES = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)


def draw_isoflop_over_size(table: Table, axes: Any | None = None) -> Any:
    """Draw loss against N_act for each (R, compute) of :func:`loopscale.plan.isoflop_over_size`, minima marked.

    The table holds one expert count. Colours tell R; the thinner line is the smaller compute.
    """
    axes = or_new(axes)
    axes.set_xscale("log")
    curves = groups(table, "recurrence", "flops")
    passes, budgets = (sorted({key[i] for key in curves}) for i in (0, 1))
    for (R, flops), rows in curves.items():
        place, width = passes.index(R), 0.8 + 0.8 * budgets.index(flops) / max(len(budgets) - 1, 1)
        draw_curve(axes, rows, "active", "loss", place, f"R = {R}", unit=BILLION, width=width)
        best = next(row for row in rows if row["best"])
        axes.scatter(best["active"] / BILLION, best["loss"], s=18, color=colour(place), marker=marker(place), zorder=3)
    shade_extrapolated(axes, table.records(), "active", unit=BILLION)
    log_ticks(axes.xaxis, SIZES)
    legend(axes, 4)
    listed = ", ".join(map(scientific, budgets))
    E = next(iter(table.records()))["experts"]
    return finish(axes, f"E = {E:g}; {listed} FLOPs (thin to thick)", "active parameters N_act (billions)", LOSS)


def draw_isoflop_over_recurrence(table: Table, axes: Any | None = None) -> Any:
    """Draw loss against R for each curve of :func:`loopscale.plan.isoflop_over_recurrence`.

    A star marks R*, hollow points are extrapolated.
    """
    axes = or_new(axes)
    for place, ((size, experts, _), rows) in enumerate(groups(table, "rung", "experts", "flops").items()):
        rows = sorted(rows, key=lambda row: row["recurrence"])
        R, loss = (np.array([row[name] for row in rows]) for name in ("recurrence", "loss"))
        axes.plot(R, loss, color=colour(place), linewidth=1.2, label=f"{size}, E = {experts:g}")
        draw_band(axes, R, rows, "loss", place)
        filled = ["white" if row["extrapolated"] else colour(place) for row in rows]
        axes.scatter(
            R, loss, s=12, color=filled, edgecolors=colour(place), marker=marker(place), linewidths=0.8, zorder=3
        )
        best = next(row for row in rows if row["best"])
        axes.scatter(best["recurrence"], best["loss"], s=75, marker="*", color=colour(place), edgecolors="k",
                     linewidths=0.6, zorder=4, gid="best")  # fmt: skip
    shade_extrapolated(axes, table.records(), "recurrence")
    legend(axes)
    flops = scientific(table.columns["flops"][0])
    return finish(axes, f"{flops} FLOPs; ★ is R*, hollow extrapolated", RECURRENCE, LOSS)
