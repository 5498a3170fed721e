"""A fit's report: how close the law is, what larger runs should reach, and what another person needs to repeat it."""

from __future__ import annotations

from functools import partial

import numpy as np

from loopscale import __version__
from loopscale.core.errors import InputError
from loopscale.core.quantities import decimals, format_bytes, format_count, format_power, format_size
from loopscale.core.report import Report, without_folder
from loopscale.core.tables import Table
from loopscale.core.text import capital
from loopscale.figures.capacity import draw_loss_over_recurrence, loss_over_recurrence
from loopscale.figures.fitting import (
    draw_intervals,
    draw_loss_over_compute,
    draw_observed,
    draw_residuals,
    intervals,
    loss_over_compute,
    residuals,
    varied_axes,
)
from loopscale.figures.optima import MARKED
from loopscale.figures.pictures import Panel
from loopscale.figures.reports.parts import add_picture, add_table
from loopscale.fitting import Fit, correlations, identification
from loopscale.planning import Budget
from loopscale.planning.profiles import built_experts, choice_span, joint_optimum
from loopscale.scaling import Counting


def fit_report(fit: Fit) -> Report:
    """Return the report of one fit."""
    data = fit.observations
    report = Report(f"Scaling law {fit.law.name}")
    report.question(f"What loss do models like these {len(data.runs):,} runs reach with more compute?")
    over_compute = loss_over_compute(fit.law, data)
    report.answer(_answer(fit, over_compute))
    add_picture(report, [Panel(over_compute, draw_loss_over_compute)],
                "Loss over training compute. Points: runs, coloured by size. Curve: the lowest loss that the law finds "
                "at each budget, dotted beyond the data. Band: 90% for one run.", 3.0)  # fmt: skip
    for sentence in fit.warnings:
        report.warning(f"{capital(sentence)}.")
    report.heading("Fit card")
    report.table(("what", "value"), list(fit_card(fit).items()))
    report.heading("For a paper")
    report.preformatted(fit.law.latex())
    _add_plans(report, fit)
    report.heading("Details")
    report.preformatted(fit.summary(verbose=True))
    _add_figures(report, fit)
    report.heading("What the data determine")
    report.text("Share: standard error divided by the search range. Objective: rise with the coefficient held.")
    add_table(report, identification(fit))
    report.text("The ten strongest correlations between coefficients; near 1, the two are not identifiable separately.")
    pairs = correlations(fit)
    add_table(report, Table({name: column[:10] for name, column in pairs.columns.items()}))
    report.provenance(data=without_folder(data.source), rows=str(len(data)), data_sha256=data.digest)
    return report


def _answer(fit: Fit, table: Table) -> str:
    """Say how close the law is to the losses, and what a larger run should reach."""
    (predicted,) = (row for row in table.records() if row["kind"] == "predicted")
    unit = fit.observations.loss_unit
    close = f"The law describes {len(fit.observations):,} losses to {fit.law.rmse:.2g} {unit} (RMSE)."
    if fit.degenerate:
        return f"{close} Its coefficients are degenerate, so it predicts nothing."
    low, high, loss = predicted["loss_low"], predicted["loss_high"], predicted["loss"]
    digits = 3 if np.isnan(low) else decimals((high - low) / 2)
    span = "" if np.isnan(low) else f" (90%: {low:.{digits}f} to {high:.{digits}f})"
    axes = (("E", "experts", fit.law.outer.uses_experts), ("R", "recurrence", fit.law.mapping.loops))
    design = ", ".join(f"{symbol} = {predicted[axis]:g}" for symbol, axis, known in axes if known)
    return (
        f"{close} With ten times the compute of the largest run, {format_power(predicted['flops'])} FLOPs, it predicts "
        f"{loss:.{digits}f}{span} for a model of {format_count(predicted['active'], 2)} active parameters"
        f"{f' with {design}' if design else ''}."
    )


def fit_card(fit: Fit) -> dict[str, str]:
    """Return what another person needs to repeat a fit: data, columns, units, procedure, seed and version."""
    data, reading = fit.observations, fit.observations.reading
    units = {name: f"{unit:g}" for name, unit in reading.units.items()}
    card = {
        "law": f"{fit.law.form}; {fit.law.equation()} (N and D as counts)",
        "data": f"{without_folder(data.source)}: {len(data):,} losses of {len(data.runs):,} runs",
        "left out": ", ".join(data.skipped),
        "rows chosen by": reading.keep or "",
        "columns": ", ".join(f"{symbol} = {name}" for symbol, name in data.columns_used.items()),
        "units stated": ", ".join(f"{name} = {unit}" for name, unit in units.items()),
        "parameter counts": data.counts.value.replace("-", " ") + (" (assumed)" if data.counts_assumed else ""),
        "loss": data.loss_unit,
        "data sha256": data.digest,
        "objective": f"sum of Huber({fit.delta:.3g}) on ln loss, {len(fit.free)} coefficients",
        "intervals": "none" if fit.resamples is None else f"90%, {fit.law.resampled_by}",
        "seed": str(fit.seed),
        "loopscale": __version__,
    }
    return {name: text for name, text in card.items() if text}


def _add_figures(report: Report, fit: Fit) -> None:
    table = residuals(fit.law, fit.observations)
    panels, caption = [Panel(table, draw_observed)], "Predicted against observed loss."
    if fit.law.mapping.loops:
        over_recurrence = loss_over_recurrence(fit.observations, {fit.law.name: fit.law})
        panels.append(Panel(over_recurrence, draw_loss_over_recurrence))
        caption = (
            "Predicted against observed loss; loss against recurrence (points: observed, line: the law, band: 90% of "
            "resampled laws)."
        )
    add_picture(report, panels, caption)
    along = [Panel(table, partial(draw_residuals, axis=axis)) for axis in varied_axes(fit.observations)]
    add_picture(report, along, "Residuals along each axis of the data: a trend means that the form does not fit.", 2.0)
    if fit.law.resamples is not None:
        add_picture(report, [Panel(intervals(fit.law), draw_intervals)], "Intervals of the coefficients.", 3.2)


def _add_plans(report: Report, fit: Fit) -> None:
    """Add the joint optimum at the paper's budgets, where the law knows experts and counts as the ladder does."""
    if fit.degenerate or not fit.law.outer.uses_experts or fit.law.counts is not Counting.WITHOUT_EMBEDDINGS:
        return
    try:
        table = joint_optimum(fit.law, MARKED, Budget(flops=5e21, bits=4))
    except InputError:
        return  # no design on the ladder suits a law fitted at a very different scale
    rows = [
        (
            format_bytes(row["memory"]),
            f"{row['rung']} {choice_span(row, 'active', format_size)}",
            f"{built_experts(row['experts'])} {choice_span(row, 'experts', built_experts)}",
            f"{row['recurrence']} {choice_span(row, 'recurrence', '{:g}'.format)}",
            f"{row['loss']:.4f}",
            "" if row["agreement"] != row["agreement"] else f"{row['agreement']:.0%}",
        )
        for row in table.records()
    ]
    report.text(
        "The best designs under this law with 5e21 FLOPs and int4 weights. In brackets: the range of 90% of the "
        "resampled laws' choices. Agreement: the share of resampled laws that choose the same design."
    )
    report.table(("memory", "size", "experts", "passes", "loss", "agreement"), rows)
