"""How every figure looks: colour-blind safe, readable in a paper column."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.files import write_bytes
from loopscale.core.quantities import format_count, format_power

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which stays apart for colour-blind readers."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
COLUMN, PAGE = 3.3, 6.75
"""Inches: the width of a column and of the page in a two-column paper."""
FORMATS = ("png", "svg", "pdf")
LOSS = "loss (nats/token)"
RECURRENCE = "recurrence R (passes)"


@dataclass(frozen=True)
class Style:
    """The style for one use of a figure: its width, its type, and whether the caption is drawn below it."""

    width: float = COLUMN
    """Inches."""
    scale: float = 1.0
    """By how much type, lines and markers are larger than in a column of a paper."""
    family: str | None = None
    caption: bool = True


STYLES = {
    "note": Style(),
    "paper": Style(family="STIXGeneral", caption=False),
    "slide": Style(width=10.0, scale=2.1, caption=False),
}
"""note: with its caption, to be shared as a file. paper: serif type and mathematics, the caption in the paper."""
WIDTHS = {"column": COLUMN, "page": PAGE}
_INDEXED = re.compile(r"\b([Ng])_(act|eff|loop|total|unroll)\b")
_STARRED = re.compile(r"\b([RE])\*")


def typeset(figure: Any, style: Style) -> None:
    """Set the type of a drawn figure: N_act and R* as mathematics, the style's family and sizes."""
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        written = text.get_text()
        if "$" not in written:
            written = _INDEXED.sub(r"$\1_\\mathrm{\2}$", written)
            text.set_text(_STARRED.sub(r"$\1^*$", written))
        text.set_fontsize(text.get_fontsize() * style.scale)
        if style.family is not None:
            text.set_fontfamily(style.family)
            text.set_math_fontfamily("stix")
    for line in figure.findobj(Line2D) if style.scale != 1.0 else ():
        line.set_linewidth(line.get_linewidth() * style.scale)
        line.set_markersize(line.get_markersize() * style.scale)


def colour(index: int) -> str:
    """Return the colour of the curve at ``index``, from the start again after the last."""
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    """Return the marker of the curve at ``index``."""
    return MARKERS[index % len(MARKERS)]


def new_figure(rows: int = 1, columns: int = 1, width: float = COLUMN, height: float = 2.5) -> tuple[Any, list[Any]]:
    """Return a figure and its panels row by row, each of the size given in inches; it needs no display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained", dpi=200)
    return figure, [figure.add_subplot(rows, columns, index + 1) for index in range(rows * columns)]


def or_new(axes: Any | None) -> Any:
    """Return ``axes``, or those of a new figure where there are none."""
    return new_figure()[1][0] if axes is None else axes


def finish(axes: Any, title: str, x: str, y: str) -> Any:
    """Label the axes and thin the frame; return them. Passes are whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title, fontsize=8, loc="left")
    axes.set_xlabel(x, fontsize=7.5)
    axes.set_ylabel(y, fontsize=7.5)
    locator = axes.xaxis.get_major_locator()
    if x.startswith(RECURRENCE) and isinstance(locator, MaxNLocator):
        locator.set_params(integer=True)
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


def size_colours(axes: Any, runs: Sequence[tuple[float, float, float]], label: str) -> None:
    """Draw points (x, y, size) in colours from dark to bright by size, with a bar that says which is which."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm

    x, y, size = (np.array(part, float) for part in zip(*runs, strict=True))
    if np.ptp(size) == 0:
        axes.scatter(x, y, s=8, color=COLOURS[0], alpha=0.7, linewidths=0)
        return
    norm = LogNorm(float(size.min()), float(size.max()))
    # More than 50 colours would become a picture inside the drawing.
    drawn = axes.scatter(
        x, y, s=8, c=size, cmap=colormaps["viridis"].resampled(32), norm=norm, alpha=0.85, linewidths=0, zorder=3
    )
    bar = axes.get_figure(root=True).colorbar(drawn, ax=axes, pad=0.02, aspect=18)
    ticks = np.geomspace(float(size.min()), float(size.max()), 3)
    bar.set_ticks(ticks, labels=[format_count(tick, 2) for tick in ticks])
    bar.minorticks_off()
    bar.ax.tick_params(labelsize=6.5, length=2)
    bar.set_label(label, fontsize=7)


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
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_power(value)))
    axis.set_minor_formatter(NullFormatter())


def save(figure: Any, path: str | Path) -> None:
    """Write the figure, whole or not at all; the ending of ``path`` chooses PNG, SVG or PDF.

    Saving a figure again gives the same bytes, and a PDF holds fonts that journals accept.
    """
    from matplotlib import rc_context

    kind = Path(path).suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise InputError("a figure ends in .png, .svg or .pdf", where=str(path))
    out = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with rc_context({"pdf.fonttype": 42, "svg.hashsalt": "loopscale"}):
        figure.savefig(out, format=kind, metadata=undated)
    write_bytes(path, out.getvalue())
