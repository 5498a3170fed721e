"""What figures are made of: rows of tidy tables as curves with bands, shades and maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.tables import Table
from loopscale.figures.style import colour, marker

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


def draw_points(
    axes: Any,
    rows: Sequence[Mapping[str, Any]],
    x: str,
    index: int,
    shape: int,
    label: str,
    *,
    y: str = "score",
    error: str = "stderr",
    line: str = "-",
) -> None:
    """Draw one curve of points with error bars where errors are known."""
    axes.errorbar(
        [row[x] for row in rows], [row[y] for row in rows], [or_zero(row.get(error)) for row in rows],
        color=colour(index), marker=marker(shape), markersize=4, linewidth=1.2, elinewidth=0.8, capsize=2, label=label,
        linestyle=line,
    )  # fmt: skip


def or_zero(value: float | None) -> float:
    """Return a spread to draw, zero where it is not known."""
    return 0.0 if value is None or value != value else value
