"""Residuals of a fit: along each axis of the data, and the outliers among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.core.numerics import student_quantile
from loopscale.core.tables import Table
from loopscale.fitting.noise import robust_scale
from loopscale.scaling import AXES

if TYPE_CHECKING:
    from loopscale.fitting.result import Fit

OUTLYING = 5.0
"""Residuals beyond so many robust standard deviations are outliers, or beyond more where there are few rows."""
FALSE_ALARMS = 0.05
"""Share of clean sweeps in which chance alone may give an outlier."""
MAD_EFFICIENCY = 0.37
"""Information about the scale that a median of absolute values keeps, relative to a standard deviation."""
DIVERGED = 1.35
"""A loss so many times what the law expects, and far outside the noise, is that of a diverged run.

In 20 fits of public sweeps no sound run is so high (at most 1.31x); the known diverged ones are 2.4x and more."""
MOST_DIVERGED = 0.05
"""Share of the rows that may be of diverged runs, beyond two."""
MOST_EPOCHS = 4.0
"""Passes over the same data from which overfitting explains a high loss as well as divergence does."""
FAR_OUTSIDE = 10.0
"""Robust standard deviations that are far outside the noise also where there are too few rows for a sharper limit."""
LEVELS = 8
"""Axes with more values than this are cut into so many parts of equal size."""


def residuals_by_axis(fit: Fit) -> Table:
    """Return mean and spread of the residuals (ln predicted - ln observed) along size, tokens, experts, recurrence."""
    points = fit.observations.points
    values = (points.active, points.tokens, points.experts, points.recurrence)
    residuals = fit.residuals
    records = []
    for axis, along in zip(AXES, values, strict=True):
        for low, high, here in _parts(along):
            part = residuals[here]
            records.append(
                {"axis": axis, "from": low, "to": high, "rows": len(part), "mean": float(part.mean()),
                 "rms": float(np.sqrt(np.mean(part**2))), "worst": float(part[np.argmax(np.abs(part))])}
            )  # fmt: skip
    return Table.from_records(records)


def _parts(values: FloatArray) -> list[tuple[float, float, BoolArray]]:
    """Cut an axis into its levels, or into groups of neighbouring levels where there are many."""
    levels = np.unique(values)
    groups = np.array_split(levels, min(LEVELS, len(levels)))
    spans = [(float(group[0]), float(group[-1])) for group in groups]
    return [(low, high, (values >= low) & (values <= high)) for low, high in spans]


def outliers(fit: Fit, beyond: float | None = None) -> Table:
    """Return the rows (from 1) whose residual is beyond so many robust standard deviations, worst first.

    ``place`` is the line or row of the file.
    """
    residuals, deviations, data = fit.residuals, _deviations(fit), fit.observations
    rows = outlying_rows(fit, beyond)
    return Table({
        "row": [k + 1 for k in rows],
        "place": [data.place(k) for k in rows],
        "run": [str(data.run[k]) for k in rows],
        "residual": [float(residuals[k]) for k in rows],
        "deviations": [float(deviations[k]) for k in rows],
    })  # fmt: skip


def outlying_rows(fit: Fit, beyond: float | None = None) -> list[int]:
    """Return the rows, from 0, whose residual lies beyond so many deviations, worst first."""
    deviations = np.abs(_deviations(fit))
    limit = outlier_limit(len(deviations), len(fit.free)) if beyond is None else beyond
    return [k for k in np.argsort(-deviations, kind="stable").tolist() if deviations[k] > limit]


def diverged_rows(fit: Fit) -> list[int]:
    """Return the rows, from 0, whose loss is so high that their run has diverged, worst first.

    None where there are many: a law of the wrong form misses whole regions of the data, which count against it.
    """
    limit = min(FAR_OUTSIDE, outlier_limit(len(fit.residuals), len(fit.free)))
    points = fit.observations.points
    high = (fit.residuals < -np.log(DIVERGED)) & (points.tokens <= MOST_EPOCHS * points.unique)
    rows = [k for k in outlying_rows(fit, limit) if high[k]]
    return rows if len(rows) <= max(2, MOST_DIVERGED * len(fit.residuals)) else []


def _deviations(fit: Fit) -> FloatArray:
    """Return each residual in robust standard deviations."""
    return fit.residuals / max(robust_scale(fit.residuals, len(fit.free)), 1e-300)


def outlier_limit(rows: int, free: int) -> float:
    """Return the deviations beyond which a residual is an outlier, so that clean sweeps rarely have one.

    A robust scale from few residuals is uncertain: the limit is a quantile of Student's t with the degrees of freedom
    that such a scale is worth, shared among the rows; with fewer than three degrees no row can be called an outlier.
    """
    degrees = MAD_EFFICIENCY * (rows - free)
    if degrees < 3:
        return np.inf
    return max(OUTLYING, student_quantile(1 - FALSE_ALARMS / rows, degrees))
