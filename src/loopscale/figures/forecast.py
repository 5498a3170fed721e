"""The figure of a forecast: the runs of a sweep, the frontier, the law's own optimum, and the band of new runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopscale.core.errors import InputError
from loopscale.figures.style import COLOURS, finish, legend, or_new, powers
from loopscale.fitting.forecasting import Forecasts
from loopscale.scaling import lowest

STEPS = 60


def draw_forecast(result: Forecasts, axes: Any | None = None) -> Any:
    """Draw losses over training compute: runs, both curves of the compute-optimal loss, the band, and the forecasts."""
    law, curve = result.law, result.law.frontier
    if curve is None:
        raise InputError(f"law {law.name} has no compute-optimal frontier to draw", where=result.source)
    axes = or_new(axes)
    least = curve.flops / 1e3
    if result.fit is not None:
        data = result.fit.observations
        flops = curve.cost.flops(data.points)
        least = float(flops.min())
        axes.scatter(flops, data.loss, s=7, alpha=0.6, color="0.55", linewidths=0, label="runs")
    most = max(curve.flops, *(each.flops for each in result.forecasts)) * 1.3
    C = np.exp(np.linspace(np.log(least), np.log(most), STEPS))
    optimum, size = lowest(law, C, curve.models, curve.cost)
    level = result.forecasts[0].level
    new_run = law.forecast(curve.models.points(size, curve.cost.tokens(C, size, curve.models.unroll())), level)
    axes.fill_between(C, new_run.low, new_run.high, color=COLOURS[0], alpha=0.18, linewidth=0,
                      label=f"{level:.0%} for one run")  # fmt: skip
    axes.plot(C, np.exp(optimum), color=COLOURS[1], linewidth=1.2, linestyle="--", label="law at its best size")
    axes.plot(C, np.exp(curve.log_loss(C)[0]), color=COLOURS[0], linewidth=1.4, label="frontier")
    for k, each in enumerate(result.forecasts):
        axes.errorbar([each.flops], [each.loss], yerr=[[each.loss - each.low], [each.high - each.loss]], fmt="o", ms=4,
                      lw=1.0, capsize=2, color="black", label="forecast" if k == 0 else None)  # fmt: skip
    axes.axvline(curve.flops, color="0.7", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    powers(axes.xaxis)
    if result.fit is not None:
        losses = result.fit.observations.loss
        top = float(np.quantile(losses, 0.98)) * 1.02
        axes.set_ylim(min(float(new_run.low.min()), *(each.low for each in result.forecasts)) * 0.99, top)
    legend(axes, columns=3)
    return finish(axes, "", "training compute C (FLOPs)", "loss (nats/token)")
