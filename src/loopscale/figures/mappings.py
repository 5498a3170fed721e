"""Loss against recurrence: what was observed, and what laws with different mappings say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loopscale.arrays import BoolArray, FloatArray
from loopscale.errors import InputError
from loopscale.figures.marks import draw_curve, groups, shade_extrapolated, stacked
from loopscale.figures.style import LOSS, RECURRENCE, colour, finish, legend, marker, or_new
from loopscale.fit import Fit, Observations, fit, resample
from loopscale.fit.holdout import applicable, default_outer
from loopscale.fit.slices import Slice
from loopscale.laws import Points, ScalingLaw
from loopscale.quantities import format_count
from loopscale.tables import Table

COMPARED = ("linear", "power", "bounded", "sparsity-conditional")
"""The mappings that the paper compares."""


def fit_mappings(
    observations: Observations, held_out: str | None = None, resamples: int = 0, **procedure: Any
) -> dict[str, Fit]:
    """Fit each mapping that the data can tell apart to the rows outside ``held_out``, a slice like ``R=16``."""
    kept = observations
    if held_out is not None:
        kept = observations.where(~Slice.parse(held_out).rows(observations)[0])
    outer = default_outer(observations)
    found = {
        name: fit(kept, outer=outer, mapping=name, **procedure) for name in COMPARED if name in applicable(observations)
    }
    return {name: resample(each, count=resamples) if resamples else each for name, each in found.items()}


def loss_over_recurrence(
    observations: Observations,
    laws: Mapping[str, ScalingLaw],
    experts: Sequence[float] | None = None,
    held_out: str | None = None,
) -> Table:
    """Return losses against R at the size with most rows and its largest D.

    Columns ``kind`` (law, observed or held out), ``mapping`` (the law's name here), ``active``, ``tokens``,
    ``experts``, ``recurrence``, ``loss``, and the band of a law's resamples.
    """
    points, here = observations.points, _slice(observations.points)
    outside = np.zeros(len(observations), bool) if held_out is None else Slice.parse(held_out).rows(observations)[0]
    parts: list[tuple[str, Any, dict[str, Any]]] = []
    for E in np.unique(points.experts[here]) if experts is None else experts:
        rows = here & (points.experts == E)
        if not rows.any():
            raise InputError(f"{observations.source}: no row has E = {E:g} at the size with most rows")
        parts += [("mapping", name, _law_rows(law, points, rows)) for name, law in laws.items()]
        parts += [("mapping", "", _seen_rows(observations, rows, outside))]
    return stacked(parts)


def draw_loss_over_recurrence(table: Table, axes: Any | None = None) -> Any:
    """Draw laws as lines with bands, observed rows as filled points, held-out rows as hollow ones."""
    axes = or_new(axes)
    laws = groups(_kind(table, "law"), "mapping", "experts")
    order = list(dict.fromkeys(table.columns["experts"]))
    by_experts = len(order) > 1
    for place, ((name, experts), rows) in enumerate(laws.items()):
        draw_curve(axes, rows, "recurrence", "loss", place, f"E = {experts:g}" if by_experts else name)
    for (kind, experts), rows in groups(table, "kind", "experts").items():
        if kind != "law":
            label = f"E = {experts:g}" if by_experts else kind
            _scatter(axes, rows, kind, label, order.index(experts) if by_experts else None)
    first = next(table.records())
    _fit_view(axes, table)
    axes.xaxis.get_major_locator().set_params(integer=True)
    shade_extrapolated(axes, _kind(table, "law").records(), "recurrence")
    legend(axes)
    title = f"N = {format_count(first['active'])}, D = {format_count(first['tokens'])}"
    return finish(axes, title if by_experts else f"E = {first['experts']:g}, {title}", RECURRENCE, LOSS)


def _scatter(axes: Any, rows: Sequence[Mapping[str, Any]], kind: str, label: str, place: int | None) -> None:
    shade = "black" if place is None else colour(place)
    axes.scatter(
        [row["recurrence"] for row in rows],
        [row["loss"] for row in rows],
        s=13,
        marker=marker(place or 0),
        facecolors=shade if kind == "observed" else "white",
        edgecolors=shade,
        linewidths=0.8,
        zorder=3,
        gid=kind,
        label=label,
    )


def _fit_view(axes: Any, table: Table) -> None:
    """Show what was observed and some room around; a law far off leaves the picture instead of flattening it."""
    seen = [row["loss"] for row in table.records() if row["kind"] != "law"]
    room = 0.5 * (max(seen) - min(seen)) or 0.01
    axes.set_ylim(min(seen) - room, max(seen) + room)


def _kind(table: Table, kind: str) -> Table:
    return Table.from_records([row for row in table.records() if row["kind"] == kind])


def _slice(points: Points) -> BoolArray:
    """Return the rows of the most common size at its largest D."""
    sizes, counts = np.unique(points.active, return_counts=True)
    size = sizes[np.argmax(counts)]
    return np.asarray((points.active == size) & (points.tokens == points.tokens[points.active == size].max()))


def _law_rows(law: ScalingLaw, points: Points, rows: BoolArray) -> dict[str, Any]:
    R, curve = _curve(points, rows)
    columns = {**_design(points, rows, len(R)), "kind": ["law"] * len(R), "recurrence": R, "loss": law(curve)}
    if law.resamples is not None:
        columns["loss_low"], columns["loss_high"] = np.percentile(law.resampled(curve), [5, 95], axis=0)
    return columns | {"extrapolated": np.where(law.fitted_range.outside("recurrence", R), "recurrence", "")}


def _seen_rows(observations: Observations, rows: BoolArray, held_out: BoolArray) -> dict[str, Any]:
    count = int(rows.sum())
    return {
        **_design(observations.points, rows, count),
        "kind": np.where(held_out[rows], "held out", "observed"),
        "recurrence": observations.points.recurrence[rows],
        "loss": observations.loss[rows],
        "extrapolated": [""] * count,
    }


def _design(points: Points, rows: BoolArray, count: int) -> dict[str, Any]:
    names = ("active", "tokens", "experts")
    return {name: np.full(count, getattr(points, name)[rows][0]) for name in names}


def _curve(points: Points, rows: BoolArray) -> tuple[FloatArray, Points]:
    """Return a fine grid of R at one design of the data."""
    first = int(np.flatnonzero(rows)[0])
    R = np.linspace(1.0, max(points.recurrence[rows].max() * 1.1, 2.0), 91)
    loop = 0.0 if points.loop is None else points.loop[points.active == points.active[first]].max()
    total = points.active[first] if points.total is None else points.total[first]
    return R, Points(points.active[first], points.tokens[first], R, points.experts[first], loop, total)
