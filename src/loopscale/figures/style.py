"""How every figure looks: colour-blind safe, readable in a paper column."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.files import write_bytes
from loopscale.core.quantities import format_count, format_power
from loopscale.core.tables import Table

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


Row = Mapping[str, Any]
SHADE = "0.92"
OUTSIDE = "extrapolated"


def groups(table: Table, *names: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Return the rows by their values in ``names``, in order of first appearance."""
    rows_by_key: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in table.records():
        rows_by_key.setdefault(tuple(row[name] for name in names), []).append(row)
    return rows_by_key


def stacked(parts: Sequence[tuple[str, Any, Mapping[str, Any]]]) -> Table:
    """Return parts (column, name, columns) as one table, each named in ``column``; NaN where a part lacks a column."""
    names = list(dict.fromkeys(key for column, _, values in parts for key in (column, *values)))
    columns_by_name: dict[str, list[Any]] = {name: [] for name in names}
    for column, name, values in parts:
        length = len(next(iter(values.values())))
        cells = {column: [name] * length, **values}
        for key in names:
            columns_by_name[key].extend(np.asarray(cells[key]).tolist() if key in cells else [np.nan] * length)
    return Table(columns_by_name)


def draw_curve(
    axes: Any,
    rows: Sequence[Row],
    x: str,
    y: str,
    index: int,
    label: str,
    *,
    unit: float = 1.0,
    steps: bool = False,
    width: float = 1.3,
) -> None:
    """Draw one curve: a line, its band where rows have one, and white dashes over what is extrapolated."""
    X, Y = np.array([row[x] for row in rows]) / unit, np.array([row[y] for row in rows], float)
    style = {"drawstyle": "steps-post"} if steps else {}
    axes.plot(X, Y, color=colour(index), linewidth=width, label=label, **style)
    draw_band(axes, X, rows, y, index, steps=steps)
    outside = np.array([bool(row.get(OUTSIDE)) for row in rows])
    if outside.any():
        if not steps:  # a segment that ends outside is extrapolated too
            outside = outside | np.append(outside[1:], False) | np.append(False, outside[:-1])
        hidden = np.where(outside, Y, np.nan)
        axes.plot(X, hidden, color="white", linewidth=width * 0.75, linestyle=(0, (1, 2)), gid=OUTSIDE, **style)


def draw_band(axes: Any, X: FloatArray, rows: Sequence[Row], y: str, index: int, *, steps: bool = False) -> None:
    """Fill between ``y_low`` and ``y_high`` where the rows carry them."""
    if f"{y}_low" in rows[0]:
        low, high = ([row[f"{y}_{end}"] for row in rows] for end in ("low", "high"))
        step = "post" if steps else None
        axes.fill_between(X, low, high, color=colour(index), alpha=0.2, linewidth=0, step=step)


def shade_extrapolated(axes: Any, rows: Iterable[Row], x: str, *, unit: float = 1.0) -> None:
    """Shade the part of the x axis where every curve is extrapolated."""
    inside: dict[float, bool] = {}
    for row in rows:
        inside[row[x] / unit] = inside.get(row[x] / unit, False) or not row[OUTSIDE]
    if not inside:
        return
    X = np.array(sorted(inside))
    outside = np.array([not inside[value] for value in X])
    limits = axes.get_xlim()
    edges = _edges(X, limits, axes.get_xscale() == "log")
    for first, last in _spans(outside):
        named = {} if any(patch.get_gid() == OUTSIDE for patch in axes.patches) else {"label": OUTSIDE}
        axes.axvspan(edges[first], edges[last], color=SHADE, zorder=0, linewidth=0, gid=OUTSIDE, **named)
    axes.set_xlim(limits)


def _edges(X: FloatArray, limits: tuple[float, float], logarithmic: bool) -> FloatArray:
    """Return where each x begins and ends: halfway to its neighbours, the outer ones at the limits."""
    middles = np.sqrt(X[:-1] * X[1:]) if logarithmic else (X[:-1] + X[1:]) / 2
    return np.concatenate([[limits[0]], middles, [limits[1]]])


def _spans(flags: Any) -> list[tuple[int, int]]:
    """Return (first, one past the last) of every run of true flags."""
    turns = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    return list(zip(turns[::2].tolist(), turns[1::2].tolist(), strict=True))


def draw_map(
    axes: Any, table: Table, x: str, y: str, value: str, levels: Sequence[float], write: Callable[[float], str]
) -> Any:
    """Draw a map of discrete choices as cells with a colour bar; hatches mark extrapolated cells, dots uncertain ones.

    Rows come as a full grid, ``y`` changing fastest. Uncertain: fewer than half of the resampled laws agree.
    """
    from matplotlib import colormaps

    colours = colormaps["cividis"].resampled(len(levels))  # from dark to bright: colour-blind readers can order them
    X, Y = (np.array(list(dict.fromkeys(table.columns[name])), float) for name in (x, y))
    cells = {name: np.array(table.columns[name]).reshape(len(X), len(Y)).T for name in (value, OUTSIDE, "agreement")}
    level = np.searchsorted(np.asarray(levels), np.nan_to_num(cells[value].astype(float), nan=levels[0]))
    masked = np.ma.masked_where(np.isnan(cells[value].astype(float)), level)
    mesh = axes.pcolormesh(
        X, Y, masked, cmap=colours, vmin=-0.5, vmax=len(levels) - 0.5, shading="nearest", rasterized=True
    )
    _hatch(axes, X, Y, cells[OUTSIDE] != "", "////", OUTSIDE)
    _hatch(axes, X, Y, cells["agreement"].astype(float) < 0.5, "....", "uncertain")
    bar = axes.get_figure(root=True).colorbar(mesh, ax=axes, ticks=range(len(levels)), pad=0.02, aspect=14)
    bar.ax.set_yticklabels([write(level) for level in levels])
    bar.ax.tick_params(labelsize=6.5, length=2)
    return bar


def _hatch(axes: Any, X: FloatArray, Y: FloatArray, where: Any, hatch: str, name: str) -> None:
    if where.any() and len(X) > 1 and len(Y) > 1:
        drawn = axes.contourf(X, Y, where.astype(float), levels=[0.5, 1.5], hatches=[hatch], colors="none")
        drawn.set(edgecolor=(1, 1, 1, 0.55), linewidth=0, gid=name)


Draw = Callable[[Table, Any], Any]


@dataclass(frozen=True)
class Panel:
    """One set of axes: the table, and what draws it."""

    table: Table
    draw: Draw
    name: str = ""
    """What tells this panel's table from the others of the picture."""


@dataclass(frozen=True)
class Picture:
    """Panels under one another, in the width of a paper column."""

    name: str
    caption: str
    panels: tuple[Panel, ...]
    height: float = 2.6
    """Inches for each panel."""

    def figure(self, columns: int = 1, width: float = COLUMN) -> Any:
        """Return the drawn matplotlib figure, ``columns`` panels of one width side by side."""
        height = self.height * (width / COLUMN) ** 0.5
        figure, places = new_figure(-(-len(self.panels) // columns), columns, width, height)
        for panel, axes in zip(self.panels, places, strict=False):
            panel.draw(panel.table, axes)
        for unused in places[len(self.panels) :]:
            unused.remove()
        return figure

    def save(
        self, folder: str | Path, formats: Sequence[str] = FORMATS, note: str = "", style: Style = STYLES["note"]
    ) -> list[Path]:
        """Write the picture in each format, and each panel's table as CSV; return what was written.

        The caption, which states the budget, and ``note`` are drawn below the panels, as files are shared without the
        page around them; some styles leave them out. Where the style is wider than a column, panels are side by side.
        """
        columns = min(len(self.panels), 2) if style.width > 1.5 * COLUMN else 1
        figure, where = self.figure(columns, style.width / columns), Path(folder)
        if style.caption:
            lines = textwrap.wrap(f"{self.caption} {note}", 80, break_on_hyphens=False)
            width, height = figure.get_size_inches()
            figure.set_size_inches(width, height + 0.11 * len(lines))
            figure.supxlabel("\n".join(lines), fontsize=5.5, x=0.01, ha="left", color="0.35")
        else:
            typeset(figure, style)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, not again for each format
        written = []
        for kind in formats:
            written.append(where / f"{self.name}.{kind}")
            save(figure, written[-1])
        for ending, table in self.tables().items():
            written.append(where / f"{self.name}{ending}.csv")
            table.save(written[-1])
        return written

    def tables(self) -> dict[str, Table]:
        """Return the tables by what their file's name ends in; panels that share a table share its file."""
        shared = {id(panel.table) for panel in self.panels}
        return {f"-{panel.name}" if len(shared) > 1 else "": panel.table for panel in self.panels}
