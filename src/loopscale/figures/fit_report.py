"""A fit's report: the law, how sure it is, what speaks against it, and what it would have one train."""

from __future__ import annotations

import hashlib

import numpy as np

from loopscale.errors import InputError
from loopscale.figures.fitting import AXES, draw_observed, draw_recurrence, draw_residuals
from loopscale.figures.style import new_figure
from loopscale.fit import Fit, correlations, identification, summary, warnings
from loopscale.laws import Counting
from loopscale.plan import Budget, choice_span, joint_optimum
from loopscale.quantities import format_bytes, format_size
from loopscale.report import Report
from loopscale.tables import Table


def fit_report(fit: Fit) -> Report:
    """Return the report of one fit."""
    report = Report(f"Scaling law {fit.law.name}: {fit.law.form}")
    for sentence in warnings(fit):
        report.warning(sentence[0].upper() + sentence[1:] + ".")
    report.heading("The fit")
    report.preformatted(summary(fit))
    _add_figures(report, fit)
    _add_plans(report, fit)
    report.heading("What the data determine")
    report.text("share: standard error over search range. objective: how much worse with the coefficient held.")
    _add_table(report, identification(fit))
    report.text("The ten strongest correlations between coefficients; near 1, neither means much alone.")
    pairs = correlations(fit)
    _add_table(report, Table({name: column[:10] for name, column in pairs.columns.items()}))
    report.provenance(data=fit.observations.source, rows=str(len(fit.observations)), data_sha256=_digest(fit))
    return report


def _add_figures(report: Report, fit: Fit) -> None:
    figure, (left, right) = new_figure(2)
    draw_observed(left, fit)
    draw_recurrence(right, fit)
    report.figure(
        figure, "Predicted against observed loss; loss against recurrence (points observed, line the law, band 90%)."
    )
    points = fit.observations.points
    varied = [axis for axis in AXES if np.ptp(getattr(points, axis)) > 0]
    figure, panels = new_figure(len(varied), width=2.6, height=2.4)
    for panel, axis in zip(panels, varied, strict=True):
        draw_residuals(panel, fit, axis)
    report.figure(figure, "Residuals along each axis of the data: a trend means that the form does not fit.")


def _add_plans(report: Report, fit: Fit) -> None:
    """Add the joint optimum at the paper's budgets, where the law knows experts and counts as the ladder does."""
    if fit.degenerate or not fit.law.outer.uses_experts or fit.law.counts is not Counting.WITHOUT_EMBEDDINGS:
        return
    try:
        table = joint_optimum(fit.law, [1e9, 3e9, 1e10], Budget(flops=5e21, bits=4))
    except InputError:
        return  # a law in another range may have no plan on the ladder
    report.heading("What it would have one train: 5e21 FLOPs, int4 weights")
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
    report.text("In brackets: the span of 90% of resampled laws' choices. agreement: the share that choose the same.")
    report.table(("memory", "size", "E", "R", "loss", "agreement"), rows)


def _add_table(report: Report, table: Table) -> None:
    rows = [
        [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row.values()] for row in table.records()
    ]
    report.table(list(table.columns), rows)


def _digest(fit: Fit) -> str:
    """Return a hash of the numbers that were fitted, whatever file they came in."""
    p = fit.observations.points
    columns = [p.active, p.tokens, p.recurrence, p.experts, fit.observations.loss]
    return hashlib.sha256(np.stack(columns).tobytes()).hexdigest()
