"""The pictures of docs/evidence.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.quantities import format_power
from loopscale.figures.style import colour, finish, marker, new_figure
from loopscale.fitting import Fit
from loopscale.scaling import Points, ScalingLaw

WIDTH, HEIGHT = 4.2, 2.9
PASSES = np.linspace(1.0, 12.0, 111)
MOST_EPOCHS = 10
"""Epochs that were measured; the law beyond is dotted."""
INFINITE = -12.0
"""Where lambda = -infinity is drawn."""


def save(figure: Any, path: Path) -> None:
    """Write a figure as SVG, the same bytes for the same numbers."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "evidence", "svg.fonttype": "path"}):
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def gain_curves(fits: dict[str, Fit], measured: dict[str, list[dict[str, float]]]) -> Any:
    """Draw the gain against R: the law's with its band, and what the runs show."""
    figure, (axes,) = new_figure(width=WIDTH, height=HEIGHT)
    for k, (label, fitted) in enumerate(fits.items()):
        gains = _gains(fitted.law)
        low, high = np.percentile(gains, [5, 95], axis=0)
        middle = fitted.law.mapping.gain(fitted.law.coefficients, PASSES, 1.0)
        seen = fitted.observations.points.recurrence.max() >= PASSES
        axes.fill_between(PASSES, low, high, color=colour(k), alpha=0.15, linewidth=0)
        axes.plot(PASSES[seen], middle[seen], color=colour(k), linewidth=1.2, label=label)
        axes.plot(PASSES[~seen], middle[~seen], color=colour(k), linewidth=1.0, linestyle=":")
        rows = measured[label]
        axes.errorbar(
            [row["R"] for row in rows], [row["gain"] for row in rows], [row["error"] for row in rows],
            fmt=marker(k), color=colour(k), markersize=3, linewidth=0.7,
        )  # fmt: skip
    axes.plot(PASSES[:40], PASSES[:40] - 1, color="0.5", linewidth=0.8, linestyle="--", label="linear")
    axes.legend(fontsize=6, frameon=False)
    axes.set_ylim(0, 4)
    finish(axes, "Gain from looping", "passes R", "gain (loop blocks)")
    return figure


def _gains(law: ScalingLaw) -> FloatArray:
    rows = np.asarray(law.resamples)
    columns = {name: rows[:, k : k + 1] for k, name in enumerate(law.names)}
    return np.asarray(law.mapping.gain(columns, PASSES[None, :], 1.0))


def exponents(records: list[dict[str, Any]], pooled: dict[str, Any]) -> Any:
    """Draw the interval of lambda for each sweep: below zero the gain has a bound."""
    figure, (axes,) = new_figure(width=WIDTH, height=HEIGHT)
    rows = [*records, {"sweep": "pooled", **pooled}]
    for k, row in enumerate(reversed(rows)):
        low, at, high = (_drawn(row[name]) for name in ("low", "tail", "high"))
        axes.plot([low, high], [k, k], color=colour(0), linewidth=1.5)
        axes.plot([at], [k], "o", color=colour(0), markersize=3.5)
    axes.axvline(0.0, color=colour(1), linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(rows)), [row["sweep"] for row in reversed(rows)], fontsize=6)
    axes.set_xticks([INFINITE, -8, -4, -2, 0, 1], ["−∞", "−8", "−4", "−2", "0", "1"])
    axes.set_xlim(INFINITE - 0.5, 1.5)
    finish(axes, "90% intervals", "lambda (below 0: bounded)", "")
    return figure


def _drawn(tail: float) -> float:
    return INFINITE if tail <= 0 else max(2 - 1 / tail, INFINITE)


def equal_compute(fitted: Fit, size: float) -> Any:
    """Draw loss against R at equal compute for one model, measured and from the law."""
    figure, (axes,) = new_figure(width=WIDTH, height=HEIGHT)
    data, law = fitted.observations, fitted.law
    p = data.points
    assert p.loop is not None
    rows = p.active == size
    loop = p.loop[rows][0]
    head = 50_304 * 1280  # of the model drawn, whose compute in the source includes it
    source = 6 * (p.unrolled + head) * p.tokens
    budgets = np.unique(np.round(np.log10(source[rows]), 1))
    for k, budget in enumerate(budgets):
        chosen = rows & (np.round(np.log10(source), 1) == budget)
        if chosen.sum() < 3:
            continue
        flops = float(np.median(source[chosen]))
        R = np.linspace(1, 8, 71)
        tokens = flops / (6 * (size + (R - 1) * loop + head))
        axes.plot(R, law(Points(size, tokens, R, loop=loop)), color=colour(k), linewidth=1.0)
        axes.plot(
            p.recurrence[chosen], data.loss[chosen], marker(k), color=colour(k), markersize=3.5,
            label=f"{format_power(flops)} FLOPs",
        )  # fmt: skip
    axes.legend(fontsize=6, frameon=False)
    finish(axes, f"Equal compute, N = {size / 1e6:.0f}M: measured and law", "passes R", "loss (nats/token)")
    return figure


def best_passes(records: list[dict[str, Any]], epochs: list[dict[str, Any]]) -> Any:
    """Draw the best R against compute on fresh and repeated tokens, and against epochs at one compute."""
    figure, (left, right) = new_figure(columns=2, width=3.6, height=HEIGHT)
    for k, group in enumerate(dict.fromkeys(row["data"] for row in records)):
        rows = [row for row in records if row["data"] == group]
        flops = [row["flops"] for row in rows]
        left.plot(flops, [row["predicted"] for row in rows], color=colour(k), linewidth=1.0, label=f"{group}, law")
        left.plot(
            flops, [row["measured"] for row in rows], marker(k), color=colour(k), markersize=3.5,
            label=f"{group}, measured",
        )  # fmt: skip
    left.set_xscale("log")
    _plain_ticks(left, [6e17, 1e18, 2e18, 4e18])
    left.legend(fontsize=6, frameon=False)
    finish(left, "Best R at 996M tokens", "training compute (FLOPs)", "passes R")
    for k, budget in enumerate(dict.fromkeys(row["flops"] for row in epochs)):
        rows = [row for row in epochs if row["flops"] == budget]
        label = f"{format_power(budget)} FLOPs"
        count, best = (np.array([row[name] for row in rows]) for name in ("epochs", "best"))
        seen = count <= MOST_EPOCHS
        right.plot(count[seen], best[seen], color=colour(k), label=label)
        right.plot(count[count >= MOST_EPOCHS], best[count >= MOST_EPOCHS], color=colour(k), linestyle=":")
    right.set_xscale("log")
    _plain_ticks(right, [1, 2, 5, 10, 14])
    right.legend(fontsize=6, frameon=False)
    finish(right, "Best R against epochs (law)", "epochs D / U", "passes R")
    return figure


def _plain_ticks(axes: Any, ticks: list[float]) -> None:
    """Label a logarithmic axis at these values alone."""
    axes.set_xticks(ticks, [f"{tick:g}".replace("e+", "e") for tick in ticks])
    axes.minorticks_off()


def test_time(curves: dict[tuple[str, str, int], tuple[FloatArray, FloatArray]]) -> Any:
    """Draw the loss over passes at test time above each model's lowest."""
    figure, (axes,) = new_figure(width=WIDTH, height=HEIGHT)
    kinds = list(dict.fromkeys(trained for _, trained, _ in curves))
    for (_, trained, _), (R, loss) in curves.items():
        k = kinds.index(trained)
        label = trained if trained not in axes.get_legend_handles_labels()[1] else None
        axes.plot(R, loss - loss.min(), color=colour(k), linewidth=0.8, marker=marker(k), markersize=2, label=label)
    axes.set_ylim(-0.005, 0.12)
    axes.legend(fontsize=6, frameon=False, title="passes in training", title_fontsize=6)
    finish(axes, "Q Labs models with other passes at test time", "passes at test time", "loss above lowest (nats)")
    return figure
