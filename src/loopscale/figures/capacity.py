"""What looping is worth: effective-parameter gain, multiplier and its limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from loopscale.architecture import Architecture, rung
from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_count
from loopscale.core.tables import Table
from loopscale.figures.curves import draw_curve, groups, shade_extrapolated, stacked
from loopscale.figures.style import LOSS, RECURRENCE, colour, finish, legend, log_ticks, marker, or_new
from loopscale.fitting import Fit, Observations, fit
from loopscale.fitting.compare import applicable
from loopscale.fitting.slices import Slice
from loopscale.scaling import Points, ScalingLaw

GAIN = "gain g_eff (loop blocks)"
PASSES = np.linspace(1.0, 16.0, 61)
SIZE = "1.0B"
"""The model that gains are shown for."""
EXPERTS = (1, 2, 4, 8, 16)
ASYMPTOTE_EXPERTS = (1, 2, 4, 8, 16, 32, 64)


def gain_by_mapping(laws: Mapping[str, ScalingLaw], model: Architecture | None = None) -> Table:
    """Return g_eff against R under each of the named laws, at one model: ``mapping, experts, recurrence, gain``."""
    model = rung(SIZE) if model is None else model
    return stacked([("mapping", name, _with_experts(law, model)) for name, law in laws.items()])


def gain_by_sparsity(law: ScalingLaw, experts: Sequence[float] = EXPERTS) -> Table:
    """Return g_eff against R for each E: ``experts, recurrence, gain``."""
    return stacked([("experts", E, _over_passes("gain", law, rung(SIZE, E))) for E in experts])


def bounded_and_unbounded(
    law: ScalingLaw, unbounded: Mapping[str, ScalingLaw], experts: Sequence[float] = (1, 8)
) -> Table:
    """Return g_eff of the law for each E, and of mappings without a bound: ``mapping, experts, recurrence, gain``."""
    parts = [("mapping", f"E = {E:g}", _with_experts(law, rung(SIZE, E))) for E in experts]
    parts += [("mapping", name, _with_experts(other, rung(SIZE))) for name, other in unbounded.items()]
    return stacked(parts)


def _with_experts(law: ScalingLaw, model: Architecture) -> dict[str, Any]:
    return {"experts": [model.experts] * len(PASSES), **_over_passes("gain", law, model)}


def multiplier_by_sparsity(law: ScalingLaw, experts: Sequence[float] = EXPERTS) -> Table:
    """Return rho_eff = N_eff / N_act against R for each E: ``experts, recurrence, multiplier`` and its ``limit``."""
    parts = []
    for E in experts:
        columns = _over_passes("multiplier", law, rung(SIZE, E))
        points = rung(SIZE, E).points(1e11, PASSES, law.counts)
        columns["limit"] = np.broadcast_to(law.largest_multiplier(points), PASSES.shape)
        parts.append(("experts", E, columns))
    return stacked(parts)


def asymptote(
    law: ScalingLaw, sizes: Sequence[str] = ("0.3B", "0.6B", "1.0B"), experts: Sequence[float] = ASYMPTOTE_EXPERTS
) -> Table:
    """Return rho_eff at R → ∞ against E for several sizes: ``rung, experts, largest_multiplier``."""
    parts = []
    for size in sizes:
        models = [rung(size, E) for E in experts]

        def limits(drawn: ScalingLaw, models: Sequence[Architecture] = models) -> FloatArray:
            return np.array([float(drawn.largest_multiplier(m.points(1e11, 1, drawn.counts))) for m in models])

        columns = _with_band("largest_multiplier", law, limits)
        outside = law.fitted_range.outside("experts", np.asarray(experts, float))
        parts.append(
            ("rung", size, {"experts": np.asarray(experts), **columns, "extrapolated": _named(outside, "experts")})
        )
    return stacked(parts)


def draw_gain_by_mapping(table: Table, axes: Any | None = None) -> Any:
    """Draw the gain of each mapping."""
    axes = or_new(axes)
    for order, ((name,), rows) in enumerate(groups(table, "mapping").items()):
        draw_curve(axes, rows, "recurrence", "gain", order, name)
    bounded = max((row["gain"] for row in table.records() if "linear" not in row["mapping"]), default=1.0)
    axes.set_ylim(0, bounded * 1.3)  # the linear mapping soon leaves the others behind
    title = f"Effective-parameter gain, E = {table.columns['experts'][0]:g}"
    return _over_recurrence(axes, table, title, GAIN)


def draw_bounded_and_unbounded(table: Table, axes: Any | None = None) -> Any:
    """Draw the law's gain for each E as solid lines, mappings without a bound as dotted ones that leave the picture."""
    axes = or_new(axes)
    highest = 0.0
    for order, ((name,), rows) in enumerate(groups(table, "mapping").items()):
        if name.startswith("E = "):
            draw_curve(axes, rows, "recurrence", "gain", order, name)
            highest = max(highest, *(row["gain"] for row in rows))
        else:
            R, gain = ([row[column] for row in rows] for column in ("recurrence", "gain"))
            axes.plot(R, gain, color=colour(order), linewidth=1.3, linestyle=":", label=f"{name} (no bound)")
    axes.set_ylim(0, highest * 1.6)
    return _over_recurrence(axes, table, "Gain with and without a bound", GAIN)


def draw_gain_by_sparsity(table: Table, axes: Any | None = None) -> Any:
    """Draw the gain for each E."""
    axes = or_new(axes)
    for order, ((E,), rows) in enumerate(groups(table, "experts").items()):
        draw_curve(axes, rows, "recurrence", "gain", order, f"E = {E:g}")
    return _over_recurrence(axes, table, "Effective-parameter gain by sparsity", GAIN)


def draw_multiplier(table: Table, axes: Any | None = None) -> Any:
    """Draw the multiplier for each E, and its limit as a dotted line."""
    axes = or_new(axes)
    for order, ((E,), rows) in enumerate(groups(table, "experts").items()):
        draw_curve(axes, rows, "recurrence", "multiplier", order, f"E = {E:g}")
        axes.axhline(rows[0]["limit"], color=colour(order), linewidth=0.8, linestyle=":", gid="limit")
    title = "Effective-parameter multiplier; dotted: R → ∞"
    return _over_recurrence(axes, table, title, "multiplier N_eff / N_act")


def draw_asymptote(table: Table, axes: Any | None = None) -> Any:
    """Draw the multiplier's limit over E, a curve for each size."""
    axes = or_new(axes)
    axes.set_xscale("log", base=2)
    for order, ((size,), rows) in enumerate(groups(table, "rung").items()):
        draw_curve(axes, rows, "experts", "largest_multiplier", order, size)
        E, limit = ([row[name] for row in rows] for name in ("experts", "largest_multiplier"))
        axes.scatter(E, limit, s=10, color=colour(order), marker=marker(order), zorder=3)
    shade_extrapolated(axes, table.records(), "experts")
    log_ticks(axes.xaxis, ASYMPTOTE_EXPERTS)
    legend(axes, 4)
    return finish(axes, "The most that looping can reach", "experts E (per active one)", "N_eff / N_act at R → ∞")


def _over_recurrence(axes: Any, table: Table, title: str, y: str) -> Any:
    shade_extrapolated(axes, table.records(), "recurrence")
    legend(axes)
    return finish(axes, title, RECURRENCE, y)


def _over_passes(name: str, law: ScalingLaw, model: Architecture) -> dict[str, Any]:
    """Return one of the law's quantities along R, with its band."""
    points = model.points(1e11, PASSES, law.counts)
    columns = _with_band(name, law, lambda drawn: np.broadcast_to(getattr(drawn, name)(points), PASSES.shape))
    outside = law.fitted_range.outside("recurrence", PASSES)
    return {"recurrence": PASSES, **columns, "extrapolated": _named(outside, "recurrence")}


def _with_band(name: str, law: ScalingLaw, quantity: Callable[[ScalingLaw], FloatArray]) -> dict[str, FloatArray]:
    """Return the quantity under the law and, where it has resamples, the span of 90% of them."""
    columns = {name: quantity(law)}
    if law.resamples is not None:
        low, high = np.percentile([quantity(resampled) for resampled in law.resampled_laws()], [5, 95], axis=0)
        columns |= {f"{name}_low": low, f"{name}_high": high}
    return columns


def _named(outside: Any, axis: str) -> Any:
    return np.where(outside, axis, "")


COMPARED = ("linear", "power", "bounded", "sparsity-conditional")
"""The mappings that the paper compares."""


def dense_rows(observations: Observations) -> Observations:
    """Return the rows of dense models, those with E = 1."""
    return observations.where(observations.points.experts == 1)


def fit_mappings(
    observations: Observations, held_out: str | None = None, resamples: int = 0, **procedure: Any
) -> dict[str, Fit]:
    """Fit each mapping that the data can distinguish to the rows outside ``held_out``, a slice like ``R=16``."""
    fitted_rows = observations
    if held_out is not None:
        fitted_rows = observations.where(~Slice.parse(held_out).rows(observations)[0])
    return {
        name: fit(fitted_rows, mapping=name, resamples=resamples, **procedure)
        for name in COMPARED
        if name in applicable(observations)
    }


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
    for name, law in laws.items():
        if not law.mapping.loops:
            raise InputError(f"law {name} has no recurrence term, so its loss does not depend on R")
    points, here = observations.points, _slice(observations.points)
    outside = np.zeros(len(observations), bool) if held_out is None else Slice.parse(held_out).rows(observations)[0]
    parts: list[tuple[str, Any, dict[str, Any]]] = []
    for E in np.unique(points.experts[here]) if experts is None else experts:
        rows = here & (points.experts == E)
        if not rows.any():
            raise InputError(f"no row has E = {E:g} at the size with most rows", where=str(observations.source))
        parts += [("mapping", name, _law_rows(law, points, rows)) for name, law in laws.items()]
        parts += [("mapping", "", _observed_rows(observations, rows, outside))]
    return stacked(parts)


def draw_loss_over_recurrence(table: Table, axes: Any | None = None, *, simulated: bool = False) -> Any:
    """Draw laws as lines with bands, observed rows as filled points, held-out rows as hollow ones.

    ``simulated`` losses are called that in the legend.
    """
    axes = or_new(axes)
    laws = groups(_kind(table, "law"), "mapping", "experts")
    expert_counts = list(dict.fromkeys(table.columns["experts"]))
    by_experts = len(expert_counts) > 1
    for order, ((name, experts), rows) in enumerate(laws.items()):
        draw_curve(axes, rows, "recurrence", "loss", order, f"E = {experts:g}" if by_experts else name)
    for (kind, experts), rows in groups(table, "kind", "experts").items():
        if kind != "law":
            points = {"observed": "simulated"}.get(kind, f"simulated, {kind}") if simulated else kind
            label = f"E = {experts:g}" if by_experts else points
            _scatter(axes, rows, kind, label, expert_counts.index(experts) if by_experts else None)
    first = next(table.records())
    _fit_view(axes, table)
    shade_extrapolated(axes, _kind(table, "law").records(), "recurrence")
    legend(axes)
    title = f"N = {format_count(first['active'])}, D = {format_count(first['tokens'])}"
    if by_experts:
        title += f"; points {'simulated' if simulated else 'observed'}"
    return finish(axes, title if by_experts else f"E = {first['experts']:g}, {title}", RECURRENCE, LOSS)


def _scatter(axes: Any, rows: Sequence[Mapping[str, Any]], kind: str, label: str, order: int | None) -> None:
    shade = "black" if order is None else colour(order)
    axes.scatter(
        [row["recurrence"] for row in rows],
        [row["loss"] for row in rows],
        s=13,
        marker=marker(order or 0),
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
    room = (0.5 if len(set(table.columns["experts"])) == 1 else 0.1) * (max(seen) - min(seen)) or 0.01
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


def _observed_rows(observations: Observations, rows: BoolArray, held_out: BoolArray) -> dict[str, Any]:
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
