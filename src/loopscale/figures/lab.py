"""Figures of the laboratory: accuracy by test-time R and by position, and the two axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscale.figures.style import RECURRENCE, colour, finish, legend, new_figure, powers

if TYPE_CHECKING:
    from loopscale.lab.scores import Scores


def draw_scores(
    scores: Sequence[Scores], labels: Sequence[str], trained: int, controls: Mapping[str, float] | None = None
) -> Any:
    """Return a figure: accuracy by test-time R for some models, and by position for the first of them.

    ``controls`` are models without a loop, by label: a line each at their accuracy.
    """
    figure, (left, right) = new_figure(1, 2, height=2.4)
    for index, (one, label) in enumerate(zip(scores, labels, strict=True)):
        passes = np.arange(1, one.most + 1)
        left.plot(passes, one.solved_R, color=colour(index), linewidth=1.3, marker="o", markersize=2.5, label=label)
    first = scores[0]
    for index, (label, accuracy) in enumerate((controls or {}).items(), len(scores)):
        left.axhline(accuracy, color=colour(index), linewidth=1.3, linestyle=":", label=label)
    left.axhline(first.task.chance, color="0.5", linewidth=0.8, linestyle="--", label="chance")
    left.axvline(trained, color="0.8", linewidth=0.8, label="R in training")
    left.set_ylim(0, 1.02)
    finish(left, f"{first.task.name}: problems solved", RECURRENCE, "accuracy")
    legend(left)
    mesh = right.imshow(
        first.right_RA, origin="lower", aspect="auto", vmin=first.task.chance, vmax=1, cmap="cividis",
        extent=(0.5, first.right_RA.shape[1] + 0.5, 0.5, first.most + 0.5), interpolation="nearest",
    )  # fmt: skip
    finish(right, "accuracy by position", "position", RECURRENCE)
    right.grid(False)
    figure.colorbar(mesh, ax=right, pad=0.02, aspect=18).ax.tick_params(labelsize=6.5)
    return figure


def draw_two_axes(summary: dict[str, Any]) -> Any:
    """Return the two-by-two figure: reasoning and knowledge at E and R, with the control, as bars with intervals."""
    subjects = {"reasoning": "reasoning: words of S3", "knowledge": "knowledge: random facts"}
    figure, panels = new_figure(1, len(subjects), height=2.7)
    for axes, (subject, title) in zip(panels, subjects.items(), strict=True):
        cells = [cell for cell in summary["cells"] if cell["task"] == subject]
        for index, cell in enumerate(cells):
            name, _, longer = cell["cell"].partition("-")
            kind = {"plain": 6, "experts": 1, "loop": 0, "both": 2}.get(name, 4)
            axes.bar(index, cell["accuracy"], 0.7, color=colour(kind), alpha=0.45 if longer else 0.85)
            if cell["interval"] is not None:
                low, high = cell["interval"]
                error = [[cell["accuracy"] - low], [high - cell["accuracy"]]]
                axes.errorbar(index, cell["accuracy"], error, color="0.2", capsize=2, linewidth=1)
        axes.axhline(cells[0]["chance"], color="0.5", linewidth=0.8, linestyle="--")
        names = [cell["model"].replace(", ", "\n").replace(" separate ", "\n").replace(" the ", "\n") for cell in cells]
        axes.set_xticks(range(len(cells)), names)
        axes.set_ylim(0, 1.05)
        seeds = sorted({cell["seeds"] for cell in cells})
        count = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else f"{seeds[0]} seed{'s' * (seeds[0] > 1)}"
        finish(axes, f"{title} ({count})", "", "accuracy")
        axes.tick_params(axis="x", labelsize=5.5)
    return figure


def draw_downstream(summary: dict[str, Any]) -> Any:
    """Return the downstream figure: overall, reasoning and knowledge over training FLOPs, over R above and E below.

    Solid lines are the smaller width, dashed ones the larger; dotted verticals mark where all models of a width have
    equal training FLOPs.
    """
    cells = summary["cells"]
    widths = sorted({cell["width"] for cell in cells})
    most = max(cell["recurrence"] for cell in cells)
    experts = max(cell["experts"] for cell in cells)
    passes = sorted({cell["recurrence"] for cell in cells})
    over_R = {f"R = {R}": (1, R, 1) for R in passes} | {f"{most} layers": (1, 1, most)}
    over_E = {f"E = {E}, R = {R}": (E, R, 1) for R in (1, most) for E in (1, experts)}
    unknown = (np.nan, np.nan)
    figure, panels = new_figure(2, 3, width=2.6, height=2.3)
    for row, models in zip((panels[:3], panels[3:]), (over_R, over_E), strict=True):
        for axes, measure in zip(row, ("overall", "reasoning", "knowledge"), strict=True):
            for index, (label, model) in enumerate(models.items()):
                for width, line in zip(widths, ("-", "--"), strict=False):
                    of_model = [
                        cell
                        for cell in cells
                        if (cell["width"], cell["experts"], cell["recurrence"], cell["layers"]) == (width, *model)
                    ]
                    points = sorted(
                        (cell["training_flops"], cell[measure]["value"], *(cell[measure]["interval"] or unknown))
                        for cell in of_model
                    )
                    if not points:
                        continue
                    flops, mean, low, high = np.array(points).T
                    named = label if width == widths[0] else None
                    axes.plot(
                        flops, mean, line, color=colour(index), linewidth=1.2, marker="o", markersize=2.5, label=named
                    )
                    axes.vlines(flops, low, high, color=colour(index), linewidth=0.8)
            for width in widths:
                for budget in sorted({cell["budget"] for cell in cells}):
                    at = [
                        c["training_flops"]
                        for c in cells
                        if (c["width"], c["budget"], c["layers"]) == (width, budget, 1)
                    ]
                    if len(at) > 1:
                        axes.axvline(float(np.mean(at)), color="0.8", linewidth=0.7, linestyle=":", zorder=0)
            axes.axhline(0, color="0.5", linewidth=0.8, linestyle="--", zorder=0)
            axes.set_xscale("log")
            powers(axes.xaxis)
            axes.set_ylim(-0.05, 1.05)
            finish(axes, measure, "training FLOPs", "0 chance, 1 all right")
        legend(row[0])
    return figure
