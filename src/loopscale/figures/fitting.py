"""Figures of a fit: what it leaves over, and what it says of recurrence."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopscale.arrays import BoolArray, FloatArray
from loopscale.figures.style import COLOURS, MARKERS, count_ticks, finish
from loopscale.fit import Fit
from loopscale.laws import Points

AXES = {
    "active": ("active parameters N", "log"),
    "tokens": ("training tokens D", "log"),
    "recurrence": ("recurrence R", "linear"),
    "experts": ("experts E", "log"),
}


def draw_residuals(axes: Any, fit: Fit, axis: str) -> None:
    """Draw the residuals of ln loss along one axis of the data; a sound fit leaves a level band."""
    values = getattr(fit.observations.points, axis)
    label, scale = AXES[axis]
    axes.axhline(0.0, color="0.6", linewidth=0.8)
    axes.scatter(values, fit.residuals, s=6, alpha=0.5, color=COLOURS[0], linewidths=0)
    count_ticks(axes, values, scale)
    finish(axes, "", label, "predicted − observed ln loss")


def draw_observed(axes: Any, fit: Fit) -> None:
    """Draw predicted against observed loss."""
    observed, predicted = fit.observations.loss, fit.law(fit.observations.points)
    span = [min(observed.min(), predicted.min()), max(observed.max(), predicted.max())]
    axes.plot(span, span, color="0.6", linewidth=0.8)
    axes.scatter(observed, predicted, s=6, alpha=0.5, color=COLOURS[1], linewidths=0)
    finish(axes, "Predicted against observed", "observed loss (nats/token)", "predicted loss (nats/token)")


def draw_recurrence(axes: Any, fit: Fit) -> None:
    """Draw loss against R for each E at the size with most rows and its largest D: points, law and 90% band.

    Observed losses are points, the law is a line.
    """
    points = fit.observations.points
    size = _most_common(points.active)
    tokens = points.tokens[points.active == size].max()
    here = (points.active == size) & (points.tokens == tokens)
    for place, experts in enumerate(np.unique(points.experts[here])):
        rows = here & (points.experts == experts)
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        axes.scatter(points.recurrence[rows], fit.observations.loss[rows], s=16, color=colour, marker=marker, zorder=3)
        R, curve = _curve(points, rows)
        axes.plot(R, fit.law(curve), color=colour, linewidth=1.2, label=f"E = {experts:g}")
        if fit.law.resamples is not None:
            low, high = np.percentile(fit.law.resampled(curve), [5, 95], axis=0)
            axes.fill_between(R, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    title = f"N = {size / 1e9:.3g}B, D = {tokens / 1e9:.3g}B"
    finish(axes, title, "recurrence R", "loss (nats/token)")


def _most_common(values: FloatArray) -> float:
    distinct, counts = np.unique(values, return_counts=True)
    return float(distinct[np.argmax(counts)])


def _curve(points: Points, rows: BoolArray) -> tuple[FloatArray, Points]:
    """Return a fine grid of R at one design of the data."""
    first = int(np.flatnonzero(rows)[0])
    R = np.linspace(1.0, max(points.recurrence[rows].max() * 1.25, 2.0), 60)
    loop = 0.0 if points.loop is None else points.loop[first]
    total = points.active[first] if points.total is None else points.total[first]
    return R, Points(points.active[first], points.tokens[first], R, points.experts[first], loop, total)
