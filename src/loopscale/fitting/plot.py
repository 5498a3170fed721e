"""The figure of a fit: predicted against observed loss, and residuals along each axis that varies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from loopscale.fitting.result import Fit


def plot_fit(fit: Fit) -> Any:
    """Return the matplotlib figure of a fit."""
    data, p = fit.observations, fit.observations.points
    axes_of = {"N": p.active, "D": p.tokens, "E": p.experts, "R": p.recurrence}
    varied = {name: values for name, values in axes_of.items() if np.ptp(values) > 0}
    figure = Figure(figsize=(3.4 * (1 + len(varied)), 3.2), layout="constrained")
    first, *rest = figure.subplots(1, 1 + len(varied), squeeze=False)[0]
    predicted = np.exp(fit.residuals) * data.loss
    span = [min(data.loss.min(), predicted.min()), max(data.loss.max(), predicted.max())]
    first.plot(span, span, color="0.6", linewidth=0.8)
    first.scatter(data.loss, predicted, s=8, alpha=0.6, linewidths=0)
    first.set(xlabel="observed loss (nats/token)", ylabel="predicted loss", title=fit.name)
    for axes, (name, values) in zip(rest, varied.items(), strict=True):
        axes.axhline(0.0, color="0.6", linewidth=0.8)
        axes.scatter(values, fit.residuals, s=8, alpha=0.6, linewidths=0)
        axes.set(xscale="log", xlabel=name, ylabel="ln predicted − ln observed", title=f"Residuals along {name}")
    return figure
