"""A sweep's report, before any law is fitted: what was varied, and the lowest losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopscale.core.quantities import format_count, format_size
from loopscale.core.report import Report, without_folder
from loopscale.core.tables import Table
from loopscale.core.text import capital
from loopscale.figures.capacity import draw_loss_over_recurrence, loss_over_recurrence
from loopscale.figures.curves import groups
from loopscale.figures.fitting import (
    varied_axes,
)
from loopscale.figures.pictures import Panel
from loopscale.figures.reports.parts import add_picture
from loopscale.figures.style import LOSS, colour, finish, legend, or_new, powers
from loopscale.fitting import Observations

AXES = {"active": "active parameters", "tokens": "tokens", "experts": "experts (E)", "recurrence": "passes (R)"}
RUNS_SHOWN = 10


def sweep_report(observations: Observations) -> Report:
    """Return the report of a sweep, before any law is fitted."""
    data, best = observations, int(np.argmin(observations.loss))
    report = Report(f"Sweep {without_folder(data.source)}")
    report.question("Which runs does the sweep have, and which losses did they reach?")
    points = data.points
    report.answer(
        f"{len(data.runs):,} runs with {len(data):,} losses. The lowest, {data.loss[best]:.4f} nats per token, is of "
        f"run {data.run[best]}: N_act {format_size(points.active[best])}, E {points.experts[best]:g}, "
        f"R {points.recurrence[best]:g}, {format_count(points.tokens[best])} tokens."
    )
    _add_certainty(report, data)
    panels = [Panel(losses(data), draw_losses)]
    if np.any(points.recurrence > 1):
        panels.append(Panel(loss_over_recurrence(data, {}), draw_loss_over_recurrence))
    add_picture(report, panels, "Loss against training compute, and against recurrence at the size with most rows.")
    report.heading("What was varied")
    rows = []
    for axis, name in AXES.items():
        values, write = (
            np.unique(getattr(points, axis)),
            format_count if axis in ("active", "tokens") else "{:g}".format,
        )
        rows.append((name, str(len(values)), write(float(values[0])), write(float(values[-1]))))
    report.table(("axis", "values", "from", "to"), rows)
    report.heading("The lowest losses")
    report.table(("run", "N_act", "E", "R", "tokens", "loss"), _best_rows(data))
    report.provenance(data=without_folder(data.source), rows=str(len(data)), data_sha256=data.digest)
    return report


def losses(observations: Observations) -> Table:
    """Return every row with its training compute, 6 N_unroll D: ``run, experts, recurrence, flops, loss``."""
    p = observations.points
    return Table.from_arrays(
        (len(observations),),
        run=observations.run,
        experts=p.experts,
        recurrence=p.recurrence,
        flops=p.train_flops,
        loss=observations.loss,
    )


def draw_losses(table: Table, axes: Any | None = None) -> Any:
    """Draw loss against compute, coloured by E, and the lowest loss so far as a line."""
    axes = or_new(axes)
    for index, ((E,), rows) in enumerate(sorted(groups(table, "experts").items())):
        flops, loss = [row["flops"] for row in rows], [row["loss"] for row in rows]
        axes.scatter(flops, loss, s=6, alpha=0.6, color=colour(index), linewidths=0, label=f"E = {E:g}")
    order = np.argsort(table.columns["flops"])
    spent, reached = (np.array(table.columns[name])[order] for name in ("flops", "loss"))
    axes.step(spent, np.minimum.accumulate(reached), where="post", color="black", linewidth=0.9, label="lowest so far")
    axes.set_xscale("log")
    powers(axes.xaxis)
    legend(axes)
    return finish(axes, "Loss against compute", "training compute (FLOPs)", LOSS)


def _add_certainty(report: Report, data: Observations) -> None:
    report.heading("Confidence")
    for note in data.notes:
        report.warning(f"{capital(note)}.")
    per_run, varied = len(data) / len(data.runs), ", ".join(AXES[axis] for axis in varied_axes(data)) or "no axis"
    report.text(
        f"{per_run:.3g} losses per run; losses of one run are not independent. "
        f"The data vary along {varied}; a law fitted to them cannot predict along other axes."
    )


def _best_rows(data: Observations) -> list[tuple[str, ...]]:
    p = data.points
    return [
        (str(data.run[i]), format_size(p.active[i]), f"{p.experts[i]:g}", f"{p.recurrence[i]:g}",
         format_count(p.tokens[i]), f"{data.loss[i]:.4f}")
        for i in np.argsort(data.loss)[:RUNS_SHOWN]
    ]  # fmt: skip
