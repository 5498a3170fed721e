"""Mean scores of groups of tasks, and their figures over compute and over passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from loopscale.core.errors import InputError
from loopscale.core.quantities import format_power
from loopscale.core.tables import Table
from loopscale.evaluate.suites import builtin_suites, load_suite
from loopscale.figures.curves import draw_points, groups, or_zero
from loopscale.figures.style import RECURRENCE, colour, finish, legend, marker, or_new, powers

OVERALL = "overall"


@lru_cache
def categories() -> dict[str, str]:
    """Return the category of every scored benchmark of the suites that come along, by its label and by its task."""
    known = (benchmark for name in builtin_suites() for benchmark in load_suite(name).benchmarks if benchmark.scored)
    return {name: benchmark.category.lower() for benchmark in known for name in (benchmark.label, benchmark.task)}


def mean_scores(results: Table, group: str = OVERALL) -> Table:
    """Return the mean score of a group of tasks for each (model, recurrence, training compute).

    ``results`` has the columns of ``loopscale.figures.results.RESULTS``. Only tasks that every model and recurrence
    has are averaged: ``tasks`` counts them. Rows that are means themselves are skipped.
    """
    runs = groups(results, "model", "recurrence", "training_flops")
    tasks = _common(results) if group == OVERALL else {task for task in _common(results) if _category(task) == group}
    if not tasks:
        raise InputError(f"results: no task of the group {group!r} was scored for every model and recurrence")
    return Table.from_records([_mean(key, rows, tasks, group) for key, rows in runs.items()])


def present_groups(results: Table) -> tuple[str, ...]:
    """Return the groups, ``overall`` first, of which every model and recurrence has a task."""
    present = dict.fromkeys(_category(task) for task in categories() if task in _common(results))
    return (OVERALL, *(name for name in present if name))


def _common(results: Table) -> set[str]:
    """Return the tasks that were scored for every model and recurrence; means over tasks do not count."""
    runs = groups(results, "model", "recurrence", "training_flops").values()
    return set.intersection(*({row["task"] for row in rows if not is_mean(row)} for rows in runs))


def is_mean(row: Mapping[str, Any]) -> bool:
    """Tell whether a row is the mean over several tasks, as ``loopscale eval --tidy`` adds them."""
    return row["metric"] == "mean" and row["task"] not in categories()


def _category(task: str) -> str:
    return categories().get(task, "")


def _mean(key: tuple[Any, ...], rows: Sequence[Mapping[str, Any]], tasks: set[str], group: str) -> dict[str, Any]:
    values = {row["task"]: row["value"] for row in rows if row["task"] in tasks}
    errors = {row["task"]: row["stderr"] for row in rows if row["task"] in tasks}
    return {
        "model": key[0],
        "recurrence": key[1],
        "training_flops": key[2],
        "group": group,
        "tasks": len(values),
        "score": float(np.mean(list(values.values()))),
        "stderr": float(np.linalg.norm(list(errors.values())) / len(errors)),
    }


def draw_downstream(table: Table, axes: Any | None = None) -> Any:
    """Draw the scores of ``mean_scores`` against training compute; dashed lines join equal compute.

    Each model and recurrence is a curve; a compute that several share is a dashed line. Where all share one compute,
    there is no curve over it: each has a separate line, so that no point hides another.
    """
    axes = or_new(axes)
    if len(set(table.columns["training_flops"])) == 1 and len(table) > 1:
        return _draw_matched(table, axes)
    axes.set_xscale("log")
    curves = groups(table, "model", "recurrence")
    models = list(dict.fromkeys(model for model, _ in curves))
    for index, ((model, R), rows) in enumerate(curves.items()):
        rows = sorted(rows, key=lambda row: row["training_flops"])
        draw_points(axes, rows, "training_flops", index, models.index(model), f"{model}, R = {R:g}")
    shared = [flops for (flops,), rows in groups(table, "training_flops").items() if len(rows) > 1]
    for flops in shared:
        axes.axvline(flops, color="0.5", linestyle="--", linewidth=0.8, zorder=0, gid="matched compute")
    compute_ticks(axes, sorted(set(table.columns["training_flops"])))
    legend(axes, 2)
    return finish(axes, group_title(table) + "; dashed: equal compute", "training compute (FLOPs)", score_label(table))


def _draw_matched(table: Table, axes: Any) -> Any:
    """Draw models of one training compute under one another."""
    rows = list(table.records())
    models = list(dict.fromkeys(row["model"] for row in rows))
    for order, row in enumerate(rows):
        index = models.index(row["model"])
        axes.errorbar(
            [row["score"]], [order], xerr=[or_zero(row["stderr"])], color=colour(index), marker=marker(index),
            markersize=4.5, elinewidth=0.8, capsize=2, linestyle="none", label=row["model"],
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [f"R = {row['recurrence']:g}" for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    legend(axes, 1)
    flops = format_power(rows[0]["training_flops"])
    return finish(axes, f"{group_title(table)}, {flops} FLOPs", score_label(table), "recurrence at test time")


def draw_scores_by_recurrence(table: Table, axes: Any | None = None) -> Any:
    """Draw the scores of ``mean_scores`` against test-time recurrence; a model with one R is a level line."""
    axes = or_new(axes)
    for index, ((model,), rows) in enumerate(groups(table, "model").items()):
        rows = sorted(rows, key=lambda row: row["recurrence"])
        if len(rows) == 1:
            label = f"{model} (R = {rows[0]['recurrence']:g})"
            axes.axhline(rows[0]["score"], color=colour(index), linestyle="--", linewidth=1, label=label)
        else:
            draw_points(axes, rows, "recurrence", index, index, model)
    legend(axes, 2)
    return finish(axes, group_title(table), RECURRENCE + " at test time", score_label(table))


def group_title(table: Table) -> str:
    first = next(table.records())
    return f"{first['group'].capitalize()} ({first['tasks']} task{'s' if first['tasks'] != 1 else ''})"


def compute_ticks(axes: Any, budgets: Sequence[float]) -> None:
    """Put ticks at the budgets where they are few, and leave a margin."""
    axes.set_xlim(budgets[0] / 2, budgets[-1] * 2)
    powers(axes.xaxis)
    apart = [budgets[0], *(later for earlier, later in pairwise(budgets) if later > 1.1 * earlier)]
    if len(apart) <= 4:
        axes.set_xticks(apart, [format_power(budget) for budget in apart])


def score_label(table: Table) -> str:
    return "mean score (%)" if max(table.columns["score"]) > 1 else "mean score (fraction)"
