"""The report of an evaluation: scores at each number of passes, by group and by task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopscale.core.report import Report
from loopscale.core.tables import Table
from loopscale.figures.curves import groups
from loopscale.figures.pictures import Panel
from loopscale.figures.reports.parts import add_picture, file_facts
from loopscale.figures.scores import (
    OVERALL,
    draw_downstream,
    draw_scores_by_recurrence,
    is_mean,
    mean_scores,
    present_groups,
)


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
