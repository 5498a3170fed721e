"""Figures of a law beside its data: loss over compute, residuals, predicted against observed, intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_count
from loopscale.core.tables import Table
from loopscale.figures.curves import draw_curve, groups
from loopscale.figures.style import COLOURS, LOSS, count_ticks, finish, legend, or_new, powers, size_colours
from loopscale.fitting import Forecast, Observations
from loopscale.scaling import Points, ScalingLaw, StatedCost, costs
from loopscale.scaling.frontier import BY_SIZE

AXES = {
    "active": ("active parameters N_act", "log"),
    "tokens": ("training tokens D", "log"),
    "recurrence": ("recurrence R (passes)", "linear"),
    "experts": ("experts E (per active one)", "log"),
}
BEYOND = 10.0
"""How far beyond the largest run the curve of loss over compute is drawn, and a run is predicted."""
STEPS, SIZES = 41, 241
"""Budgets of the curve, and sizes that are compared at each."""


def loss_over_compute(
    law: ScalingLaw,
    observations: Observations | None,
    flops: float | None = None,
    forecasts: Sequence[Forecast] = (),
    level: float = 0.9,
) -> Table:
    """Return the runs, the law's lowest loss for each budget with its band, and the losses predicted.

    ``kind`` is run, law, frontier (where the law has one) or predicted. The law's curve is the best that it finds at
    each budget among models of any size with the experts and passes of the data; its band is that of a new run.
    Predicted are ``forecasts``; without them the best run at ``flops``, or at ten times the compute of the largest run
    where ``flops`` is beyond that. Without observations the models and the compute are those of the law's frontier.
    """
    curve = law.frontier
    if observations is None and curve is None:
        raise InputError(f"law {law.name} has no compute-optimal frontier to draw", remedy="give the table of runs")
    cost = BY_SIZE if curve is None else curve.cost
    if observations is None:
        assert curve is not None
        points, C = curve.models.points(np.ones(1), np.ones(1)), curve.flops * np.array([1e-3, 1.0])
    else:
        points = observations.points
        C = np.asarray(cost.flops(points), float)
    most = float(C.max())
    if forecasts:
        target = max(most, *(forecast.flops for forecast in forecasts))
    else:
        target = BEYOND * most if flops is None or not most < flops <= BEYOND * most else flops
    budgets = np.append(np.geomspace(float(C.min()), 1.05 * target, STEPS), target)
    best = _best(law, points, budgets, cost)
    by_law = law(best)
    loss_at, low, high = by_law, np.full(len(budgets), np.nan), np.full(len(budgets), np.nan)
    if law.spread is not None:
        loss_at, low, high = law.forecast(best, level)[:3]
    elif law.resamples is not None:
        low, high = law.interval(best, level)
    outside = [""] * len(budgets)
    for axis, flags in law.extrapolated(best).items():
        marked = np.broadcast_to(flags, low.shape)
        outside = [f"{text} {axis}".strip() if out else text for text, out in zip(outside, marked, strict=True)]

    def row(kind: str, k: int, y: float) -> dict[str, Any]:
        return {"kind": kind, "flops": float(budgets[k]), "active": float(best.active[k]),
                "experts": float(best.experts[k]), "recurrence": float(best.recurrence[k]), "loss": y,
                "loss_low": float(low[k]), "loss_high": float(high[k]), "extrapolated": outside[k]}  # fmt: skip

    rows: list[dict[str, Any]] = []
    if observations is not None:
        axes = (
            C,
            *(np.broadcast_to(axis, points.shape) for axis in (points.active, points.experts, points.recurrence)),
        )
        seen = zip(*(axis.tolist() for axis in axes), observations.loss.tolist(), strict=True)
        rows = [{"kind": "run", "flops": c, "active": n, "experts": e, "recurrence": r, "loss": y, "loss_low": np.nan,
                 "loss_high": np.nan, "extrapolated": ""} for c, n, e, r, y in seen]  # fmt: skip
    rows += [row("law", k, float(by_law[k])) for k in range(STEPS)]
    if curve is not None:
        frontier = np.exp(curve.log_loss(budgets)[0])
        of_runs = {"active": np.nan, "experts": np.nan, "recurrence": np.nan}  # not of the law's best design
        near_data = (k for k in range(STEPS) if budgets[k] >= most / BEYOND)
        rows += [row("frontier", k, float(frontier[k])) | of_runs for k in near_data]
    rows += [{"kind": "predicted", "flops": one.flops, "active": one.params, "experts": one.experts,
              "recurrence": one.recurrence, "loss": one.loss, "loss_low": one.low, "loss_high": one.high,
              "extrapolated": ""} for one in forecasts]  # fmt: skip
    rows += [] if forecasts else [row("predicted", STEPS, float(loss_at[STEPS]))]
    return Table.from_records(rows)


def _best(law: ScalingLaw, points: Points, budgets: FloatArray, cost: StatedCost) -> Points:
    """Return, for each budget, the model of lowest loss: any size, with experts and passes as the data have them."""
    share = np.zeros(points.shape) if points.loop is None else points.loop / points.active
    ratio = np.ones(points.shape) if points.total is None else points.total / points.active
    proportions = (points.experts, points.recurrence, share, ratio)
    designs = np.stack([np.broadcast_to(part, points.shape) for part in proportions], axis=1)
    _, first = np.unique(designs[:, :2], axis=0, return_index=True)
    E, R, share, ratio = designs[first].T[:, :, None, None]
    spread = np.exp(np.linspace(-np.log(1e3), np.log(1e3), SIZES))
    N = np.sqrt(budgets / costs.TRAIN / 20)[:, None] * spread + np.zeros_like(E)
    D = cost.tokens(budgets[:, None], N, costs.unrolled(1.0, share, R))
    parts = (N, D, R + 0 * N, E + 0 * N, share * N, ratio * N)
    by_budget = [np.moveaxis(part, 1, 0).reshape(len(budgets), -1) for part in parts]
    best = np.argmin(law(Points(*by_budget)), axis=1)
    return Points(*(part[np.arange(len(budgets)), best] for part in by_budget))


def draw_loss_over_compute(table: Table, axes: Any | None = None) -> Any:
    """Draw a table of ``loss_over_compute``: runs coloured by size, the curve with its band, the predicted runs."""
    axes = or_new(axes)
    parts = {kind: rows for (kind,), rows in groups(table, "kind").items()}
    runs, curve, predicted = parts.get("run", []), parts["law"], parts["predicted"]
    if runs:
        size_colours(axes, [(row["flops"], row["loss"], row["active"]) for row in runs], "active parameters")
    draw_curve(axes, curve, "flops", "loss", 1, "")
    if frontier := parts.get("frontier"):
        axes.plot(
            [row["flops"] for row in frontier], [row["loss"] for row in frontier], color=COLOURS[0], linewidth=1.2
        )
        at = frontier[int(0.6 * len(frontier))]
        axes.annotate("frontier of the runs", (at["flops"], at["loss"]), xytext=(-3, -9), color=COLOURS[0], ha="right",
                      textcoords="offset points", fontsize=6.5)  # fmt: skip
    for row in predicted:
        spread = None if np.isnan(row["loss_low"]) else [[row["loss"] - row["loss_low"]],
                                                         [row["loss_high"] - row["loss"]]]  # fmt: skip
        axes.errorbar(
            [row["flops"]], [row["loss"]], yerr=spread, fmt="*", ms=8, color="black", elinewidth=1, capsize=2, zorder=5,
        )  # fmt: skip
    axes.set_xscale("log")
    powers(axes.xaxis)
    highest = float(np.quantile([row["loss"] for row in runs or curve], 0.98))
    lines = [*curve, *predicted]
    lowest = float(np.nanmin([row["loss_low"] for row in lines] + [row["loss"] for row in lines]))
    axes.set_ylim(lowest - 0.12 * (highest - lowest), highest + 0.05 * (highest - lowest))
    middle, last = curve[int(0.45 * len(curve))], predicted[-1]
    axes.annotate("law at its best size", (middle["flops"], middle["loss"]), xytext=(-4, -9), color=COLOURS[1],
                  textcoords="offset points", fontsize=6.5, ha="right")  # fmt: skip
    label = f"predicted {last['loss']:.2f}\n{format_count(last['active'], 2)} parameters"
    axes.annotate(label, (last["flops"], last["loss"]), xytext=(-7, -3), textcoords="offset points",
                  fontsize=6.5, ha="right", va="top")  # fmt: skip
    return finish(axes, "", "training compute $C$ (FLOPs)", LOSS)


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
    truths = {} if truth is None else truth.coefficients
    return Table(
        {
            "coefficient": list(law.names),
            "estimate": [law.coefficients[name] for name in law.names],
            "low": low.tolist(),
            "high": high.tolist(),
            "truth": [truths.get(name, float("nan")) for name in law.names],
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
