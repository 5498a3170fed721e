"""Figures of trained models: expert-path diversity, training and test-time recurrence."""

from __future__ import annotations

from typing import Any

from loopscale.core.tables import Table
from loopscale.figures.curves import draw_points, groups
from loopscale.figures.style import LOSS, RECURRENCE, colour, finish, legend, marker, or_new, powers


def draw_psi(table: Table, axes: Any | None = None) -> Any:
    """Draw Psi against R for each E, with its spread; columns ``experts, recurrence, psi, spread``."""
    axes = or_new(axes)
    for index, ((E,), rows) in enumerate(groups(table, "experts").items()):
        rows = sorted(rows, key=lambda row: row["recurrence"])
        draw_points(axes, rows, "recurrence", index, index, f"E = {E:g}", y="psi", error="spread")
    axes.set_xticks(sorted(set(table.columns["recurrence"])))
    legend(axes, 4)
    return finish(axes, "Expert-path diversity (bars: ± 1 std)", RECURRENCE, "Ψ (experts per active one)")


PASS_PANELS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Loss by test-time R", LOSS, {"loss": "loss"}),
    ("Overlap of experts", "Jaccard index", {"overlap_previous": "previous pass", "overlap_first": "first pass"}),
    ("State", "relative", {"change": "change in this pass", "distance": "distance to the fixed point"}),
)
"""Title, label and curves of each panel."""


def draw_passes(table: Table, panels: list[Any]) -> list[Any]:
    """Draw loss, overlap of experts and change of the state by pass; columns that the table lacks are left out."""
    R = table.columns["recurrence"]
    for axes, (title, label, curves) in zip(panels, PASS_PANELS, strict=True):
        for index, (name, text) in enumerate(curves.items()):
            if name in table.columns:
                axes.plot(R, table.columns[name], color=colour(index), marker=marker(index), markersize=3.5, label=text)
        if len(curves) > 1 and axes.lines:
            legend(axes, 1)
        finish(axes, title, RECURRENCE, label)
    return panels


def draw_training(table: Table, axes: Any | None = None) -> Any:
    """Draw training loss against tokens, a curve for each ``run``; columns ``step, tokens, loss``."""
    axes = or_new(axes)
    runs = groups(table, "run") if "run" in table.columns else {("loss",): list(table.records())}
    for index, ((run,), rows) in enumerate(runs.items()):
        axes.plot(
            [row["tokens"] for row in rows], [row["loss"] for row in rows], color=colour(index), linewidth=1, label=run
        )
    axes.set_xscale("log")
    powers(axes.xaxis)
    legend(axes, 2)
    return finish(axes, "Training", "training tokens D", LOSS)


def draw_test_time(table: Table, axes: Any | None = None) -> Any:
    """Draw the loss of a checkpoint against the recurrence it is run at; columns ``recurrence, loss, stderr``.

    A ``model`` column makes a curve for each.
    """
    axes = or_new(axes)
    models = groups(table, "model") if "model" in table.columns else {("",): list(table.records())}
    for index, ((model,), rows) in enumerate(models.items()):
        rows = sorted(rows, key=lambda row: row["recurrence"])
        draw_points(axes, rows, "recurrence", index, index, model, y="loss")
    if "model" in table.columns:
        legend(axes, 2)
    return finish(axes, "Test-time recurrence", RECURRENCE + " at test time", LOSS)
