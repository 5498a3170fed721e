"""How every figure looks: colour-blind safe, readable in a paper column."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from loopscale.arrays import FloatArray
from loopscale.errors import InputError
from loopscale.files import write_bytes
from loopscale.quantities import format_count

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which stays apart for colour-blind readers."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def new_figure(columns: int, width: float = 3.5, height: float = 2.8) -> tuple[Any, list[Any]]:
    """Return a figure and its axes side by side, each the size of a paper column, without a screen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height), layout="constrained", dpi=150)
    return figure, [figure.add_subplot(1, columns, place + 1) for place in range(columns)]


def finish(axes: Any, title: str, x: str, y: str) -> None:
    """Label the axes and thin the frame."""
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25, linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def count_ticks(axes: Any, values: FloatArray, scale: str) -> None:
    """Put a few ticks where the data are, written as people write counts."""
    from matplotlib.ticker import NullFormatter

    levels = np.unique(values)
    ticks = levels if len(levels) <= 6 else np.unique(levels[np.linspace(0, len(levels) - 1, 4).round().astype(int)])
    axes.set_xscale(scale)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(ticks, [format_count(tick, 2) for tick in ticks])


def save(figure: Any, path: str | Path) -> None:
    """Write the figure, whole or not at all; the ending of ``path`` chooses PNG, SVG or PDF."""
    kind = Path(path).suffix.lstrip(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"{path}: a figure ends in .png, .svg or .pdf")
    out = io.BytesIO()
    figure.savefig(out, format=kind)
    write_bytes(path, out.getvalue())
