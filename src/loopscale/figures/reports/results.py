"""The reports of a fit, a sweep and an evaluation, and the parts that reports share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from loopscale import __version__
from loopscale.core.errors import InputError
from loopscale.core.files import checksum
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
from loopscale.figures.outcomes import (
    OVERALL,
    draw_downstream,
    draw_scores_by_recurrence,
    is_mean,
    mean_scores,
    present_groups,
)
from loopscale.figures.style import LOSS, Panel, Picture, colour, finish, groups, legend, or_new, powers
from loopscale.fitting import Fit, Observations, correlations, identification
from loopscale.planning import Budget
from loopscale.planning.profiles import built_experts, choice_span, joint_optimum
from loopscale.scaling import Counting


def file_facts(path: str | Path | None) -> dict[str, str]:
    """Return a file's name and SHA-256 for the provenance table; nothing without a file."""
    if path is None:
        return {}
    return {"file": without_folder(str(path)), "file_sha256": checksum(Path(path))}


def add_table(report: Report, table: Table) -> None:
    """Add a table with its values as people write them."""
    rows = [[readable(cell) for cell in row.values()] for row in table.records()]
    report.table([name.replace("_", " ") for name in table.columns], rows)


def add_picture(report: Report, panels: Iterable[Panel], caption: str, height: float = 2.6) -> None:
    """Add panels under one caption; they stand side by side where the page is wide enough."""
    report.figure([Picture("", caption, (panel,), height).figure() for panel in panels], caption)


def readable(cell: Any) -> str:
    """Return a value as people write it: yes or no, 6.22e18, 413B, four digits otherwise."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        if cell != cell:
            return "–"
        if abs(cell) >= 1e15:
            return format_power(cell)
        return format_count(cell) if abs(cell) >= 1e5 else f"{cell:.4g}"
    return str(cell)


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
    return (
        f"{close} With ten times the compute of the largest run, {format_power(predicted['flops'])} FLOPs, it predicts "
        f"{loss:.{digits}f}{span} for a model of {format_count(predicted['active'], 2)} active parameters."
    )


def fit_card(fit: Fit) -> dict[str, str]:
    """Return what another person needs to repeat a fit: data, columns, units, procedure, seed and version."""
    data, reading = fit.observations, fit.observations.reading
    units = {name: f"{unit:g}" for name, unit in reading.units.items()}
    card = {
        "law": f"{fit.law.form}; {fit.law.equation()}",
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
    report.table(("axis", "values", "from", "to"), [_axis_row(data, axis) for axis in AXES])
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


def _axis_row(data: Observations, axis: str) -> tuple[str, ...]:
    values = np.unique(getattr(data.points, axis))
    write = format_count if axis in ("active", "tokens") else "{:g}".format
    return AXES[axis], str(len(values)), write(float(values[0])), write(float(values[-1]))


def _best_rows(data: Observations) -> list[tuple[str, ...]]:
    p = data.points
    return [
        (str(data.run[i]), format_size(p.active[i]), f"{p.experts[i]:g}", f"{p.recurrence[i]:g}",
         format_count(p.tokens[i]), f"{data.loss[i]:.4f}")
        for i in np.argsort(data.loss)[:RUNS_SHOWN]
    ]  # fmt: skip


def evaluation_report(results: Table, source: str | Path | None = None) -> Report:
    """Return the report of evaluation results, with the columns of ``loopscale.figures.results.RESULTS``."""
    overall = list(mean_scores(results).records())
    models = list(dict.fromkeys(row["model"] for row in overall))
    report = Report(f"Evaluation of {', '.join(models)}")
    report.question("How good is each model on these tasks, and what do more passes at test time add?")
    report.answer(" ".join(_best(model, [row for row in overall if row["model"] == model]) for model in models))
    report.heading("Confidence")
    report.text(_certainty(overall))
    by_group = [(group, mean_scores(results, group)) for group in present_groups(results)]
    panels = [Panel(table, draw_scores_by_recurrence) for _, table in by_group]
    add_picture(report, panels, "Mean scores against test-time recurrence; bars are standard errors where known.")
    if all(row["training_flops"] == row["training_flops"] for row in overall):
        report_panels = [Panel(table, draw_downstream) for group, table in by_group if group in (OVERALL, "reasoning")]
        add_picture(report, report_panels, "Mean scores against training compute; dashed lines mark equal compute.")
    _add_scores(report, results, overall)
    report.provenance(**file_facts(source))
    return report


def _best(model: str, rows: list[dict[str, Any]]) -> str:
    top, first = max(rows, key=lambda row: row["score"]), min(rows, key=lambda row: row["recurrence"])
    sentence = f"{model}: {_score(top)} on average over {top['tasks']} tasks at R = {top['recurrence']:g}"
    if top is first:
        return f"{sentence}."
    return f"{sentence}, {top['score'] - first['score']:+.3g} over R = {first['recurrence']:g}."


def _certainty(overall: list[dict[str, Any]]) -> str:
    stderrs = [row["stderr"] for row in overall if row["stderr"] == row["stderr"]]
    if not stderrs:
        return "The results state no standard errors, so small differences may be chance."
    return (
        f"The mean scores have standard errors of up to {max(stderrs):.3g}, which cover the choice of questions only; "
        "another training run would differ by more."
    )


def _add_scores(report: Report, results: Table, overall: list[dict[str, Any]]) -> None:
    """Add a row for each task and a column for each model and recurrence, the mean last."""
    results = Table.from_records([row for row in results.records() if not is_mean(row)])
    runs = groups(results, "model", "recurrence")
    tasks = list(dict.fromkeys(zip(results.columns["task"], results.columns["metric"], strict=True)))
    cells = {key: {(row["task"], row["metric"]): row for row in rows} for key, rows in runs.items()}
    report.heading("Scores by task")
    head = ("task", "metric", *(f"{model}, R={R:g}" for model, R in runs))
    body = [[task, metric, *(_cell(scores.get((task, metric))) for scores in cells.values())] for task, metric in tasks]
    means = {(row["model"], row["recurrence"]): row for row in overall}
    report.table(head, [*body, ["mean", "", *(_score(means[key]) for key in runs)]])


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    error = "" if row["stderr"] != row["stderr"] else f" ± {row['stderr']:.2g}"
    return f"{row['value']:.4g}{error}"


def _score(row: Mapping[str, Any]) -> str:
    return f"{row['score']:.4g}"
