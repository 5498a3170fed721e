"""Figures of a law beside its data: residuals, predicted against observed, intervals of coefficients."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopscale.core.errors import InputError
from loopscale.core.tables import Table
from loopscale.figures.style import COLOURS, count_ticks, finish, legend, or_new
from loopscale.fitting import Observations
from loopscale.scaling import ScalingLaw

AXES = {
    "active": ("active parameters N_act", "log"),
    "tokens": ("training tokens D", "log"),
    "recurrence": ("recurrence R (passes)", "linear"),
    "experts": ("experts E (per active one)", "log"),
}


def residuals(law: ScalingLaw, observations: Observations) -> Table:
    """Return each row with its observed and predicted loss and ``residual``, predicted minus observed ln loss."""
    points, predicted = observations.points, law(observations.points)
    return Table.from_arrays(
        (len(observations),),
        run=observations.run,
        **{axis: getattr(points, axis) for axis in AXES},
        observed=observations.loss,
        predicted=predicted,
        residual=np.log(predicted) - np.log(observations.loss),
    )


def varied_axes(observations: Observations) -> tuple[str, ...]:
    """Return the axes along which the data differ."""
    return tuple(axis for axis in AXES if np.ptp(getattr(observations.points, axis)) > 0)


def draw_residuals(table: Table, axes: Any | None = None, *, axis: str = "recurrence") -> Any:
    """Draw the residuals along one axis of the data; a good fit leaves a level band."""
    axes = or_new(axes)
    values = np.array(table.columns[axis], float)
    label, scale = AXES[axis]
    axes.axhline(0.0, color="0.6", linewidth=0.8)
    axes.scatter(values, table.columns["residual"], s=6, alpha=0.5, color=COLOURS[0], linewidths=0)
    count_ticks(axes, values, scale)
    return finish(axes, "", label, "predicted − observed\n(ln of loss in nats/token)")


def draw_observed(table: Table, axes: Any | None = None) -> Any:
    """Draw predicted against observed loss."""
    axes = or_new(axes)
    observed, predicted = table.columns["observed"], table.columns["predicted"]
    span = [min(*observed, *predicted), max(*observed, *predicted)]
    axes.plot(span, span, color="0.6", linewidth=0.8)
    axes.scatter(observed, predicted, s=6, alpha=0.5, color=COLOURS[1], linewidths=0)
    return finish(axes, "Predicted against observed", "observed loss (nats/token)", "predicted loss (nats/token)")


def intervals(law: ScalingLaw, truth: ScalingLaw | None = None) -> Table:
    """Return each coefficient with its 90% interval over the resampled laws, and the true one where it is known.

    Columns ``coefficient, estimate, low, high, truth``.
    """
    if law.resamples is None:
        raise InputError(f"{law.name}: this law carries no resampled laws; fit it with resampling first")
    low, high = np.percentile(law.resamples, [5, 95], axis=0)
    known = {} if truth is None else truth.coefficients
    return Table(
        {
            "coefficient": list(law.names),
            "estimate": [law.coefficients[name] for name in law.names],
            "low": low.tolist(),
            "high": high.tolist(),
            "truth": [known.get(name, float("nan")) for name in law.names],
        }
    )


def draw_intervals(table: Table, axes: Any | None = None) -> Any:
    """Draw each coefficient's interval relative to its estimate; crosses are true values where they are known."""
    axes = or_new(axes)
    rows = [row for row in table.records() if row["estimate"]]
    height = np.arange(len(rows))[::-1]
    relative = {name: [100 * (row[name] / row["estimate"] - 1) for row in rows] for name in ("low", "high", "truth")}
    axes.axvline(0.0, color="0.6", linewidth=0.8)
    axes.hlines(height, relative["low"], relative["high"], color=COLOURS[0], linewidth=2.2, alpha=0.7)
    axes.scatter(np.zeros(len(rows)), height, s=12, color=COLOURS[0], zorder=3, label="estimate, 90% interval")
    if not np.isnan(relative["truth"]).all():
        axes.scatter(
            relative["truth"], height, s=16, marker="x", color=COLOURS[1], linewidths=1, zorder=4, label="truth"
        )
    axes.set_xscale("symlog", linthresh=20, linscale=2)  # one wide interval must not hide the others
    reach = np.nanmax(np.abs([*relative["low"], *relative["high"], 20.0]))
    ticks = [
        tick
        for tick in (-1000, -100, -20, -10, 0, 10, 20, 100, 1000)
        if min(relative["low"]) * 1.2 <= tick or tick >= -20
    ]
    axes.set_xticks([tick for tick in ticks if tick <= reach * 1.2], minor=False)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(height, [row["coefficient"] for row in rows])
    legend(axes)
    return finish(axes, "Coefficients and their 90% intervals", "distance from the estimate (%)", "coefficient")
