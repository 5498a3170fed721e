"""What looping is worth: effective-parameter gain, multiplier and its limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from loopscale.architecture import Architecture, rung
from loopscale.arrays import FloatArray
from loopscale.figures.marks import draw_curve, groups, shade_extrapolated, stacked
from loopscale.figures.style import RECURRENCE, colour, finish, legend, log_ticks, marker, or_new
from loopscale.laws import ScalingLaw
from loopscale.tables import Table

PASSES = np.linspace(1.0, 16.0, 61)
EXPERTS = (1, 2, 4, 8, 16)
ASYMPTOTE_EXPERTS = (1, 2, 4, 8, 16, 32, 64)


def gain_by_mapping(
    laws: Mapping[str, ScalingLaw], model: Architecture | None = None, recurrences: FloatArray = PASSES
) -> Table:
    """Return g_eff against R under each of the named laws, at one model: ``mapping, experts, recurrence, gain``."""
    model = rung("1.0B") if model is None else model
    parts = [("mapping", name, _over_passes("gain", law, model, recurrences)) for name, law in laws.items()]
    return stacked(
        [(column, name, {"experts": [model.experts] * len(recurrences), **each}) for column, name, each in parts]
    )


def gain_by_sparsity(
    law: ScalingLaw, size: str = "1.0B", experts: Sequence[float] = EXPERTS, recurrences: FloatArray = PASSES
) -> Table:
    """Return g_eff against R for each E: ``experts, recurrence, gain``."""
    parts = [("experts", E, _over_passes("gain", law, rung(size, E), recurrences)) for E in experts]
    return stacked(parts)


def multiplier_by_sparsity(
    law: ScalingLaw, size: str = "1.0B", experts: Sequence[float] = EXPERTS, recurrences: FloatArray = PASSES
) -> Table:
    """Return rho_eff = N_eff / N_act against R for each E: ``experts, recurrence, multiplier`` and its ``limit``."""
    parts = []
    for E in experts:
        columns = _over_passes("multiplier", law, rung(size, E), recurrences)
        points = rung(size, E).points(1e11, recurrences, law.counts)
        columns["limit"] = np.broadcast_to(law.largest_multiplier(points), recurrences.shape)
        parts.append(("experts", E, columns))
    return stacked(parts)


def asymptote(
    law: ScalingLaw, sizes: Sequence[str] = ("0.3B", "0.6B", "1.0B"), experts: Sequence[float] = ASYMPTOTE_EXPERTS
) -> Table:
    """Return rho_eff at R → ∞ against E for several sizes: ``rung, experts, largest_multiplier``."""
    parts = []
    for size in sizes:
        models = [rung(size, E) for E in experts]

        def limits(each: ScalingLaw, models: Sequence[Architecture] = models) -> FloatArray:
            return np.array([float(each.largest_multiplier(m.points(1e11, 1, each.counts))) for m in models])

        columns = _with_band("largest_multiplier", law, limits)
        outside = law.fitted_range.outside("experts", np.asarray(experts, float))
        parts.append(
            ("rung", size, {"experts": np.asarray(experts), **columns, "extrapolated": _named(outside, "experts")})
        )
    return stacked(parts)


def draw_gain_by_mapping(table: Table, axes: Any | None = None) -> Any:
    """Draw the gain of each mapping."""
    axes = or_new(axes)
    for place, ((name,), rows) in enumerate(groups(table, "mapping").items()):
        draw_curve(axes, rows, "recurrence", "gain", place, name)
    bounded = max((row["gain"] for row in table.records() if "linear" not in row["mapping"]), default=1.0)
    axes.set_ylim(0, bounded * 1.3)  # the linear mapping soon leaves the others behind
    title = f"Effective-parameter gain by mapping, E = {table.columns['experts'][0]:g}"
    return _over_recurrence(axes, table, title, "gain g_eff (loop blocks)")


def draw_gain_by_sparsity(table: Table, axes: Any | None = None) -> Any:
    """Draw the gain for each E."""
    axes = or_new(axes)
    for place, ((E,), rows) in enumerate(groups(table, "experts").items()):
        draw_curve(axes, rows, "recurrence", "gain", place, f"E = {E:g}")
    return _over_recurrence(axes, table, "Effective-parameter gain by sparsity", "gain g_eff (loop blocks)")


def draw_multiplier(table: Table, axes: Any | None = None) -> Any:
    """Draw the multiplier for each E, and its limit as a dotted line."""
    axes = or_new(axes)
    for place, ((E,), rows) in enumerate(groups(table, "experts").items()):
        draw_curve(axes, rows, "recurrence", "multiplier", place, f"E = {E:g}")
        axes.axhline(rows[0]["limit"], color=colour(place), linewidth=0.8, linestyle=":", gid="limit")
    title = "Effective-parameter multiplier; dotted: R → ∞"
    return _over_recurrence(axes, table, title, "multiplier N_eff / N_act")


def draw_asymptote(table: Table, axes: Any | None = None) -> Any:
    """Draw the multiplier's limit over E, a curve for each size."""
    axes = or_new(axes)
    axes.set_xscale("log", base=2)
    for place, ((size,), rows) in enumerate(groups(table, "rung").items()):
        draw_curve(axes, rows, "experts", "largest_multiplier", place, size)
        E, limit = ([row[name] for row in rows] for name in ("experts", "largest_multiplier"))
        axes.scatter(E, limit, s=10, color=colour(place), marker=marker(place), zorder=3)
    shade_extrapolated(axes, table.records(), "experts")
    log_ticks(axes.xaxis, ASYMPTOTE_EXPERTS)
    legend(axes, 4)
    return finish(axes, "The most that looping can reach", "experts E (per active one)", "N_eff / N_act at R → ∞")


def _over_recurrence(axes: Any, table: Table, title: str, y: str) -> Any:
    shade_extrapolated(axes, table.records(), "recurrence")
    legend(axes)
    return finish(axes, title, RECURRENCE, y)


def _over_passes(name: str, law: ScalingLaw, model: Architecture, recurrences: FloatArray) -> dict[str, Any]:
    """Return one of the law's quantities along R, with its band."""
    points = model.points(1e11, recurrences, law.counts)
    columns = _with_band(name, law, lambda each: np.broadcast_to(getattr(each, name)(points), recurrences.shape))
    outside = law.fitted_range.outside("recurrence", recurrences)
    return {"recurrence": recurrences, **columns, "extrapolated": _named(outside, "recurrence")}


def _with_band(name: str, law: ScalingLaw, quantity: Callable[[ScalingLaw], FloatArray]) -> dict[str, FloatArray]:
    """Return the quantity under the law and, where it has resamples, the span of 90% of them."""
    found = {name: quantity(law)}
    if law.resamples is not None:
        low, high = np.percentile([quantity(each) for each in law.resampled_laws()], [5, 95], axis=0)
        found |= {f"{name}_low": low, f"{name}_high": high}
    return found


def _named(outside: Any, axis: str) -> Any:
    return np.where(outside, axis, "")
