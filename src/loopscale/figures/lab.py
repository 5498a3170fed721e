"""Figures of the laboratory: accuracy by test-time R and by position, and the two axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscale.figures.style import RECURRENCE, colour, finish, legend, new_figure

if TYPE_CHECKING:
    from loopscale.lab.scores import Scores


def draw_scores(scores: Sequence[Scores], labels: Sequence[str], trained: int) -> Any:
    """Return a figure: accuracy by test-time R for some models, and by position for the first of them."""
    figure, (left, right) = new_figure(1, 2, height=2.4)
    for index, (one, label) in enumerate(zip(scores, labels, strict=True)):
        passes = np.arange(1, one.most + 1)
        left.plot(passes, one.solved_R, color=colour(index), linewidth=1.3, marker="o", markersize=2.5, label=label)
    first = scores[0]
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
            low, high = cell["interval"] or (cell["accuracy"],) * 2
            error = [[cell["accuracy"] - low], [high - cell["accuracy"]]]
            kind = {"plain": 6, "experts": 1, "loop": 0, "both": 2}.get(cell["cell"], 4)
            axes.bar(index, cell["accuracy"], 0.7, color=colour(kind), alpha=0.85, yerr=error, ecolor="0.2", capsize=2)
        axes.axhline(cells[0]["chance"], color="0.5", linewidth=0.8, linestyle="--")
        axes.set_xticks(range(len(cells)), [cell["model"].replace(", ", "\n") for cell in cells])
        axes.set_ylim(0, 1.05)
        finish(axes, title, "", "accuracy")
        axes.tick_params(axis="x", labelsize=5.5)
    return figure
