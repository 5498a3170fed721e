"""The report of a fit: the law, its confidence and warnings, and the plans that follow from it."""

from __future__ import annotations

from functools import partial

from loopscale.errors import InputError
from loopscale.figures.capacity import draw_loss_over_recurrence, loss_over_recurrence
from loopscale.figures.fitting import draw_intervals, draw_observed, draw_residuals, intervals, residuals, varied_axes
from loopscale.figures.reports.parts import add_picture, add_table, digest
from loopscale.figures.style import Panel
from loopscale.fit import Fit, correlations, identification
from loopscale.laws import Counting
from loopscale.plan import Budget, choice_span, joint_optimum
from loopscale.quantities import format_bytes, format_size
from loopscale.report import Report
from loopscale.tables import Table


def fit_report(fit: Fit) -> Report:
    """Return the report of one fit."""
    data = fit.observations
    report = Report(f"Scaling law {fit.law.name}: {fit.law.form}")
    report.question(f"What loss do models like these {len(data.runs):,} runs reach, and what follows? ({data.source})")
    report.answer(
        f"A {fit.law.form} law fits {len(data):,} losses with an RMSE of {fit.law.rmse:.4f} nats "
        f"(R² {fit.r_squared:.4f})."
    )
    _add_plans(report, fit)
    report.heading("Confidence")
    for sentence in fit.warnings:
        report.warning(sentence[0].upper() + sentence[1:] + ".")
    report.preformatted(fit.summary())
    _add_figures(report, fit)
    report.heading("What the data determine")
    report.text("Share: standard error divided by the search range. Objective: rise with the coefficient held.")
    add_table(report, identification(fit))
    report.text("The ten strongest correlations between coefficients; near 1, the two cannot be told apart.")
    pairs = correlations(fit)
    add_table(report, Table({name: column[:10] for name, column in pairs.columns.items()}))
    report.provenance(data=data.source, rows=str(len(data)), data_sha256=digest(data))
    return report


def _add_figures(report: Report, fit: Fit) -> None:
    table = residuals(fit.law, fit.observations)
    panels = [
        Panel(table, draw_observed),
        Panel(loss_over_recurrence(fit.observations, {fit.law.name: fit.law}), draw_loss_over_recurrence),
    ]
    add_picture(report, panels, "Predicted against observed loss; loss against recurrence (points: observed, line: the "
                "law, band: 90% of resampled laws).")  # fmt: skip
    along = [Panel(table, partial(draw_residuals, axis=axis)) for axis in varied_axes(fit.observations)]
    add_picture(report, along, "Residuals along each axis of the data: a trend means that the form does not fit.", 2.0)
    if fit.law.resamples is not None:
        add_picture(report, [Panel(intervals(fit.law), draw_intervals)], "Intervals of the coefficients.", 3.2)


def _add_plans(report: Report, fit: Fit) -> None:
    """Add the joint optimum at the paper's budgets, where the law knows experts and counts as the ladder does."""
    if fit.degenerate or not fit.law.outer.uses_experts or fit.law.counts is not Counting.WITHOUT_EMBEDDINGS:
        return
    try:
        table = joint_optimum(fit.law, [1e9, 3e9, 1e10], Budget(flops=5e21, bits=4))
    except InputError:
        return  # no design on the ladder suits a law fitted at a very different scale
    rows = [
        (
            format_bytes(row["memory"]),
            f"{row['rung']} {choice_span(row, 'active', format_size)}",
            f"{row['experts']:g} {choice_span(row, 'experts', '{:g}'.format)}",
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
    report.table(("memory", "size", "E", "R", "loss", "agreement"), rows)
