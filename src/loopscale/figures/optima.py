"""The best recurrence, experts and design against compute and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from loopscale.core.quantities import format_power
from loopscale.core.tables import Table
from loopscale.figures.curves import draw_band, draw_curve, draw_map, groups, shade_extrapolated
from loopscale.figures.style import LOSS, RECURRENCE, colour, finish, legend, log_ticks, marker, or_new, powers

GIGABYTE = 1e9
MEMORIES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
SIZES = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
COMPUTE = "training compute (FLOPs)"
MEMORY = "weight memory (GB)"


def draw_best_recurrence(table: Table, axes: Any | None = None) -> Any:
    """Draw R* against compute for each (size, E) of ``loopscale.planning.profiles.recurrence_map``.

    Later curves are thinner, so that equal values of several sizes can be seen.
    """
    axes = or_new(axes)
    axes.set_xscale("log")
    curves = groups(table, "rung", "experts")
    for index, ((size, experts), rows) in enumerate(curves.items()):
        width = 1.0 + 1.5 * (len(curves) - 1 - index)
        label = size if _one_expert_count(table) else f"{size}, E = {experts:g}"
        draw_curve(axes, rows, "flops", "best_recurrence", index, label, steps=True, width=width)
    highest = max(table.columns["best_recurrence"])
    axes.set_ylim(0.5, highest + 0.5)
    axes.yaxis.get_major_locator().set_params(integer=True)
    shade_extrapolated(axes, table.records(), "flops")
    powers(axes.xaxis)
    legend(axes, 4 if _one_expert_count(table) else 3)
    return finish(axes, f"Compute-optimal recurrence{_at_experts(table)}", COMPUTE, "R* (passes)")


def draw_best_loss(table: Table, axes: Any | None = None) -> Any:
    """Draw the loss at R* against compute for each (size, E) of ``loopscale.planning.profiles.recurrence_map``.

    A marker stands where R* rises.
    """
    axes = or_new(axes)
    axes.set_xscale("log")
    for index, ((size, experts), rows) in enumerate(groups(table, "rung", "experts").items()):
        label = size if _one_expert_count(table) else f"{size}, E = {experts:g}"
        draw_curve(axes, rows, "flops", "loss", index, label)
        rises = [row for before, row in pairwise(rows) if row["best_recurrence"] > before["best_recurrence"]]
        X, Y = ([row[name] for row in rises] for name in ("flops", "loss"))
        axes.scatter(X, Y, s=13, color=colour(index), marker=marker(index), zorder=3, gid="rises")
    shade_extrapolated(axes, table.records(), "flops")
    powers(axes.xaxis)
    legend(axes, 4 if _one_expert_count(table) else 3)
    return finish(axes, f"Loss at R*; markers: R* rises{_at_experts(table)}", COMPUTE, LOSS)


def _one_expert_count(table: Table) -> bool:
    return len(set(table.columns["experts"])) == 1


def _at_experts(table: Table) -> str:
    return f", E = {table.columns['experts'][0]:g}" if _one_expert_count(table) else ""


def draw_recurrence_map(table: Table, axes: Any | None = None, *, levels: Sequence[float] | None = None) -> Any:
    """Draw R* over (compute, size) for the one expert count of ``table``.

    Maps to be compared share ``levels``, so that a colour means the same R* in each.
    """
    axes = or_new(axes)
    axes.set(xscale="log", yscale="log")
    levels = levels or range(1, int(max(table.columns["best_recurrence"])) + 1)
    billions = Table({**table.columns, "active": [active / 1e9 for active in table.columns["active"]]})
    bar = draw_map(axes, billions, "flops", "active", "best_recurrence", levels, "{:g}".format)
    bar.set_label("R* (passes)", fontsize=7)
    powers(axes.xaxis)
    log_ticks(axes.yaxis, SIZES)
    finish(axes, f"R* at E = {table.columns['experts'][0]:g}{_key(table)}", COMPUTE, "N_act (billions)")
    axes.grid(visible=False)
    return axes


def draw_best_experts(table: Table, axes: Any | None = None) -> Any:
    """Draw E* against memory at the one recurrence of ``table``.

    With the size free, markers show the size chosen with it; with a column ``fixed``, each size is a curve.
    """
    axes = or_new(axes)
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)
    rows = [row for row in table.records() if row["best_experts"] == row["best_experts"]]
    fixed = "fixed" in table.columns
    if fixed:
        sizes = list(dict.fromkeys(row["fixed"] for row in rows))
        for index, size in enumerate(sizes):
            of_size = [row for row in rows if row["fixed"] == size]
            width = 1.0 + 0.9 * (len(sizes) - 1 - index)
            draw_curve(axes, of_size, "memory", "best_experts", index, size, unit=GIGABYTE, steps=True, width=width)
    else:
        draw_curve(axes, rows, "memory", "best_experts", 6, "E*", unit=GIGABYTE, steps=True)
        for index, size in enumerate(sorted({row["rung"] for row in rows})):
            starts = [row for row in _changes(rows, "rung", "best_experts") if row["rung"] == size]
            X, Y = [row["memory"] / GIGABYTE for row in starts], [row["best_experts"] for row in starts]
            axes.scatter(X, Y, s=14, color=colour(index), marker=marker(index), zorder=3, label=size)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.85), high * 1.1)
    shade_extrapolated(axes, rows, "memory", unit=GIGABYTE)
    log_ticks(axes.xaxis, MEMORIES)
    log_ticks(axes.yaxis, (1, 2, 4, 8, 16, 32, 64))
    legend(axes, 3 if fixed else 4)
    how = "each size by itself" if fixed else "size free; markers: it changes"
    return finish(axes, f"R = {rows[0]['recurrence']}, {how}", MEMORY, "E* (experts per active one)")


def draw_experts_map(table: Table, axes: Any | None = None, *, levels: Sequence[float] | None = None) -> Any:
    """Draw E* over (memory, R) of ``loopscale.planning.profiles.experts_map``; white where nothing fits.

    Maps to be compared share ``levels``. A column ``fixed`` names the one size.
    """
    axes = or_new(axes)
    axes.set_xscale("log")
    levels = levels or sorted({E for E in table.columns["best_experts"] if E == E})
    scaled = Table({**table.columns, "memory": [memory / GIGABYTE for memory in table.columns["memory"]]})
    bar = draw_map(axes, scaled, "memory", "recurrence", "best_experts", levels, "{:g}".format)
    bar.set_label("E*", fontsize=7)
    log_ticks(axes.xaxis, MEMORIES)
    size = f"at {table.columns['fixed'][0]}" if "fixed" in table.columns else "with the size free"
    finish(axes, f"E* {size}{_key(table)}", MEMORY, RECURRENCE)
    axes.grid(visible=False)
    return axes


MARKED = (1e9, 3e9, 1e10)
"""The memories, in bytes, whose designs the paper names."""


def draw_joint_optimum(table: Table, axes: Any | None = None, *, marked: Sequence[float] = MARKED) -> Any:
    """Draw the best design's loss against memory of ``loopscale.planning.profiles.joint_optimum``.

    Colours show R. The designs at the ``marked`` memories are listed in the upper right.
    """
    axes = or_new(axes)
    axes.set_xscale("log")
    rows = [row for row in table.records() if row["rung"]]
    draw_curve(axes, rows, "memory", "loss", 6, "best loss", unit=GIGABYTE, steps=True)
    changes = _changes(rows, "rung", "experts", "recurrence")
    passes = sorted({row["recurrence"] for row in changes})
    for R in passes:
        starts = [row for row in changes if row["recurrence"] == R]
        X, Y = [row["memory"] / GIGABYTE for row in starts], [row["loss"] for row in starts]
        axes.scatter(
            X, Y, s=14, color=colour(passes.index(R)), marker=marker(passes.index(R)), zorder=3, label=f"R = {R}"
        )
    _name_designs(axes, rows, marked)
    shade_extrapolated(axes, rows, "memory", unit=GIGABYTE)
    log_ticks(axes.xaxis, MEMORIES)
    legend(axes, 4)
    return finish(axes, "Best design by memory", MEMORY, LOSS)


def _name_designs(axes: Any, rows: Sequence[Mapping[str, Any]], marked: Sequence[float]) -> None:
    """Ring each marked memory on the curve; list the designs in the upper right, which a falling curve leaves free."""
    inside = [memory for memory in marked if rows[0]["memory"] <= memory <= rows[-1]["memory"] * 1.0001]
    for order, memory in enumerate(inside):
        row = next(row for row in reversed(rows) if row["memory"] <= memory * 1.0001)
        at, amount = (memory / GIGABYTE, row["loss"]), f"{memory / GIGABYTE:g} GB"
        axes.scatter(*at, s=45, facecolors="none", edgecolors="0.2", linewidths=0.8, zorder=4, gid="marked")
        axes.annotate(amount, at, fontsize=6.5, xytext=(3.5, 4.5), textcoords="offset points", gid="memory")
        design = f"{amount}: {row['rung']}, E = {row['experts']:g}, R = {row['recurrence']:g}"
        axes.text(
            0.985,
            0.98 - 0.1 * order,
            design,
            transform=axes.transAxes,
            fontsize=6.5,
            ha="right",
            va="top",
            gid="design",
        )


def _changes(rows: Sequence[Mapping[str, Any]], *names: str) -> list[Mapping[str, Any]]:
    """Return the first row, and every row that differs from the one before it in ``names``."""
    return [*rows[:1], *(row for before, row in pairwise(rows) if any(before[name] != row[name] for name in names))]


def _key(table: Table) -> str:
    """Return a second line of the title that explains hatches and dots, where the map has them."""
    marks = ["hatched: extrapolated"] if any(table.columns["extrapolated"]) else []
    marks += ["dotted: uncertain"] if any(share < 0.5 for share in table.columns["agreement"]) else []
    return "\n" + ", ".join(marks) if marks else ""


BILLION = 1e9


def draw_isoflop_over_size(table: Table, axes: Any | None = None) -> Any:
    """Draw loss against N_act for each (R, compute) of ``loopscale.planning.profiles.isoflop_over_size``.

    Minima are marked. The table holds one expert count. Colours show R; the legend says which width is which compute.
    """
    axes = or_new(axes)
    axes.set_xscale("log")
    curves = groups(table, "recurrence", "flops")
    passes, budgets = (sorted({key[i] for key in curves}) for i in (0, 1))
    for (R, flops), rows in curves.items():
        index, width = passes.index(R), _width(budgets, flops)
        draw_curve(axes, rows, "active", "loss", index, f"R = {R}", unit=BILLION, width=width)
        best = next(row for row in rows if row["best"])
        axes.scatter(best["active"] / BILLION, best["loss"], s=18, color=colour(index), marker=marker(index), zorder=3)
    shade_extrapolated(axes, table.records(), "active", unit=BILLION)
    if len(budgets) > 1:
        for flops in budgets:
            axes.plot([], [], color="0.3", linewidth=_width(budgets, flops), label=f"{format_power(flops)} FLOPs")
    log_ticks(axes.xaxis, SIZES)
    legend(axes)
    E = next(iter(table.records()))["experts"]
    title = f"E = {E:g}, fixed compute" if len(budgets) > 1 else f"E = {E:g}, {format_power(budgets[0])} FLOPs"
    return finish(axes, title, "active parameters N_act (billions)", LOSS)


def _width(budgets: Sequence[float], flops: float) -> float:
    """Return the width of the curves of one budget: the more compute, the thicker."""
    return 0.7 + 1.1 * budgets.index(flops) / max(len(budgets) - 1, 1)


def draw_isoflop_over_recurrence(table: Table, axes: Any | None = None) -> Any:
    """Draw loss against R for each curve of ``loopscale.planning.profiles.isoflop_over_recurrence``.

    A star marks R*, the last pass that gains at least eps; hollow points are extrapolated.
    """
    axes = or_new(axes)
    for index, ((size, experts, _), rows) in enumerate(groups(table, "rung", "experts", "flops").items()):
        rows = sorted(rows, key=lambda row: row["recurrence"])
        R, loss = (np.array([row[name] for row in rows]) for name in ("recurrence", "loss"))
        axes.plot(R, loss, color=colour(index), linewidth=1.2, label=f"{size}, E = {experts:g}")
        draw_band(axes, R, rows, "loss", index)
        filled = ["white" if row["extrapolated"] else colour(index) for row in rows]
        axes.scatter(
            R, loss, s=12, color=filled, edgecolors=colour(index), marker=marker(index), linewidths=0.8, zorder=3
        )
        best = next(row for row in rows if row["best"])
        axes.scatter(best["recurrence"], best["loss"], s=75, marker="*", color=colour(index), edgecolors="k",
                     linewidths=0.6, zorder=4, gid="best")  # fmt: skip
    shade_extrapolated(axes, table.records(), "recurrence")
    legend(axes)
    flops = format_power(table.columns["flops"][0])
    return finish(axes, f"{flops} FLOPs; ★ R*; hollow: extrapolated", RECURRENCE, LOSS)
