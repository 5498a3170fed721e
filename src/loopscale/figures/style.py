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
COLUMN = 3.3
"""Inches: the width of a column in a two-column paper."""
FORMATS = ("png", "svg", "pdf")
LOSS = "loss (nats/token)"
RECURRENCE = "recurrence R (passes)"


def colour(place: int) -> str:
    """Return the colour of the curve at ``place``, from the start again after the last."""
    return COLOURS[place % len(COLOURS)]


def marker(place: int) -> str:
    """Return the marker of the curve at ``place``."""
    return MARKERS[place % len(MARKERS)]


def new_figure(rows: int = 1, columns: int = 1, width: float = COLUMN, height: float = 2.5) -> tuple[Any, list[Any]]:
    """Return a figure and its panels row by row, each of the size given in inches, without a screen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained", dpi=200)
    return figure, [figure.add_subplot(rows, columns, place + 1) for place in range(rows * columns)]


def or_new(axes: Any | None) -> Any:
    """Return ``axes``, or those of a new figure where there are none."""
    return new_figure()[1][0] if axes is None else axes


def finish(axes: Any, title: str, x: str, y: str) -> Any:
    """Label the axes and thin the frame; return them."""
    axes.set_title(title, fontsize=8, loc="left")
    axes.set_xlabel(x, fontsize=7.5)
    axes.set_ylabel(y, fontsize=7.5)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes


def legend(axes: Any, columns: int = 3) -> None:
    """Put the legend below the axes, where it covers no data; one entry for each label."""
    from matplotlib.transforms import ScaledTranslation

    handles, labels = axes.get_legend_handles_labels()
    named = dict(reversed(list(zip(labels, handles, strict=True))))
    order = list(dict.fromkeys(labels))
    below = axes.transAxes + ScaledTranslation(0, -31 / 72, axes.get_figure(root=True).dpi_scale_trans)
    axes.legend(
        [named[label] for label in order],
        order,
        fontsize=6.5,
        frameon=False,
        ncols=columns,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=below,
        borderaxespad=0.0,
        handlelength=1.6,
        columnspacing=1.2,
    )


def count_ticks(axes: Any, values: FloatArray, scale: str) -> None:
    """Put a few ticks where the data are, written as people write counts."""
    from matplotlib.ticker import NullFormatter

    levels = np.unique(values)
    ticks = levels if len(levels) <= 6 else np.unique(levels[np.linspace(0, len(levels) - 1, 4).round().astype(int)])
    axes.set_xscale(scale)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(ticks, [format_count(tick, 2) for tick in ticks])


def log_ticks(axis: Any, ticks: tuple[float, ...]) -> None:
    """Put plain numbers at those of ``ticks`` that lie on a logarithmic axis, without minor labels."""
    from matplotlib.ticker import NullFormatter

    low, high = axis.get_view_interval()
    inside = [tick for tick in ticks if low <= tick * 1.001 and tick <= high * 1.001]
    axis.set_minor_formatter(NullFormatter())
    axis.set_ticks(inside, [f"{tick:g}" for tick in inside])


def powers(axis: Any) -> None:
    """Write the ticks of a logarithmic axis like 2e21, as many as there is room for."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    steps = (1.0,) if high / low > 50 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=steps, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: scientific(value)))
    axis.set_minor_formatter(NullFormatter())


def scientific(value: float) -> str:
    """Write a large number as people write compute: 5e21, 1.42e22."""
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def save(figure: Any, path: str | Path) -> None:
    """Write the figure, whole or not at all; the ending of ``path`` chooses PNG, SVG or PDF.

    The same figure gives the same bytes on any day, and a PDF carries fonts that journals take.
    """
    from matplotlib import rc_context

    kind = Path(path).suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise InputError(f"{path}: a figure ends in .png, .svg or .pdf")
    out = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with rc_context({"pdf.fonttype": 42, "svg.hashsalt": "loopscale"}):
        figure.savefig(out, format=kind, metadata=undated)
    write_bytes(path, out.getvalue())
