"""Marks that many figures share: curves with bands, extrapolated parts, maps of choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from loopscale.arrays import FloatArray
from loopscale.figures.style import colour
from loopscale.tables import Table

Row = Mapping[str, Any]
SHADE = "0.92"
OUTSIDE = "extrapolated"


def groups(table: Table, *names: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Return the rows by their values in ``names``, in order of first appearance."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in table.records():
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def stacked(parts: Sequence[tuple[str, Any, Mapping[str, Any]]]) -> Table:
    """Return parts (column, name, columns) under one another, each named in ``column``; NaN where one lacks another."""
    names = list(dict.fromkeys(key for column, _, values in parts for key in (column, *values)))
    found: dict[str, list[Any]] = {name: [] for name in names}
    for column, name, values in parts:
        length = len(next(iter(values.values())))
        cells = {column: [name] * length, **values}
        for key in names:
            found[key].extend(np.asarray(cells[key]).tolist() if key in cells else [np.nan] * length)
    return Table(found)


def draw_curve(
    axes: Any,
    rows: Sequence[Row],
    x: str,
    y: str,
    place: int,
    label: str,
    *,
    unit: float = 1.0,
    steps: bool = False,
    width: float = 1.3,
) -> None:
    """Draw one curve: a line, its band where rows have one, and white dashes over what is extrapolated."""
    X, Y = np.array([row[x] for row in rows]) / unit, np.array([row[y] for row in rows], float)
    style = {"drawstyle": "steps-post"} if steps else {}
    axes.plot(X, Y, color=colour(place), linewidth=width, label=label, **style)
    draw_band(axes, X, rows, y, place, steps=steps)
    outside = np.array([bool(row.get(OUTSIDE)) for row in rows])
    if outside.any():
        if not steps:  # a segment that ends outside is extrapolated too
            outside = outside | np.append(outside[1:], False) | np.append(False, outside[:-1])
        hidden = np.where(outside, Y, np.nan)
        axes.plot(X, hidden, color="white", linewidth=width * 0.75, linestyle=(0, (1, 2)), gid=OUTSIDE, **style)


def draw_band(axes: Any, X: FloatArray, rows: Sequence[Row], y: str, place: int, *, steps: bool = False) -> None:
    """Fill between ``y_low`` and ``y_high`` where the rows carry them."""
    if f"{y}_low" in rows[0]:
        low, high = ([row[f"{y}_{end}"] for row in rows] for end in ("low", "high"))
        step = "post" if steps else None
        axes.fill_between(X, low, high, color=colour(place), alpha=0.2, linewidth=0, step=step)


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
        named = {} if any(each.get_gid() == OUTSIDE for each in axes.patches) else {"label": OUTSIDE}
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
    """Draw a map of discrete choices as cells with a colour bar; hatches mark extrapolated cells, dots doubtful ones.

    Rows come as a full grid, ``y`` changing fastest. Doubtful: fewer than half of the resampled laws agree.
    """
    X, Y = (np.array(list(dict.fromkeys(table.columns[name])), float) for name in (x, y))
    cells = {name: np.array(table.columns[name]).reshape(len(X), len(Y)).T for name in (value, OUTSIDE, "agreement")}
    place = np.searchsorted(np.asarray(levels), np.nan_to_num(cells[value].astype(float), nan=levels[0]))
    shown = np.ma.masked_where(np.isnan(cells[value].astype(float)), place)
    mesh = axes.pcolormesh(
        X, Y, shown, cmap=_choices(len(levels)), vmin=-0.5, vmax=len(levels) - 0.5, shading="nearest", rasterized=True
    )
    _hatch(axes, X, Y, cells[OUTSIDE] != "", "////", OUTSIDE)
    _hatch(axes, X, Y, cells["agreement"].astype(float) < 0.5, "....", "doubtful")
    bar = axes.get_figure(root=True).colorbar(mesh, ax=axes, ticks=range(len(levels)), pad=0.02, aspect=14)
    bar.ax.set_yticklabels([write(level) for level in levels])
    bar.ax.tick_params(labelsize=6.5, length=2)
    return bar


def _choices(count: int) -> Any:
    """Return ``count`` colours from dark to bright that colour-blind readers can order."""
    from matplotlib import colormaps

    return colormaps["cividis"].resampled(count)


def _hatch(axes: Any, X: FloatArray, Y: FloatArray, where: Any, hatch: str, name: str) -> None:
    if where.any() and len(X) > 1 and len(Y) > 1:
        drawn = axes.contourf(X, Y, where.astype(float), levels=[0.5, 1.5], hatches=[hatch], colors="none")
        drawn.set(edgecolor=(1, 1, 1, 0.55), linewidth=0, gid=name)
