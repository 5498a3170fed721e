"""Figures of trained models: scores, expert-path diversity, training and test-time-recurrence curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from loopscale.core.errors import InputError
from loopscale.core.tables import Table
from loopscale.evaluate.results import PROPORTIONS, fit_accuracy
from loopscale.evaluate.suites import builtin_suites, load_suite
from loopscale.figures.style import LOSS, RECURRENCE, colour, finish, groups, legend, marker, or_new, powers, scientific

OVERALL = "overall"
_OF_SWEEP = ("size", "experts", "tokens", "validation_loss")
"""Columns of a sweep's models that the figure needs."""


@lru_cache
def categories() -> dict[str, str]:
    """Return the category of every scored benchmark of the suites that come along, by its label and by its task."""
    known = (benchmark for name in builtin_suites() for benchmark in load_suite(name).benchmarks if benchmark.scored)
    return {name: benchmark.category.lower() for benchmark in known for name in (benchmark.label, benchmark.task)}


def mean_scores(results: Table, group: str = OVERALL) -> Table:
    """Return the mean score of a group of tasks for each (model, recurrence, training compute).

    ``results`` has the columns of :data:`loopscale.figures.results.RESULTS`. Only tasks that every model and recurrence
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
    """Draw the scores of :func:`mean_scores` against training compute; dashed lines join equal compute.

    Each model and recurrence is a curve; a compute that several share is a dashed line.
    """
    axes = or_new(axes)
    axes.set_xscale("log")
    curves = groups(table, "model", "recurrence")
    models = list(dict.fromkeys(model for model, _ in curves))
    for index, ((model, R), rows) in enumerate(curves.items()):
        rows = sorted(rows, key=lambda row: row["training_flops"])
        _points(axes, rows, "training_flops", index, models.index(model), f"{model}, R = {R:g}")
    shared = [flops for (flops,), rows in groups(table, "training_flops").items() if len(rows) > 1]
    for flops in shared:
        axes.axvline(flops, color="0.5", linestyle="--", linewidth=0.8, zorder=0, gid="matched compute")
    _compute_ticks(axes, sorted(set(table.columns["training_flops"])))
    legend(axes, 2)
    return finish(
        axes, _group_title(table) + "; dashed: equal compute", "training compute (FLOPs)", _score_label(table)
    )


def sweep_scores(results: Table) -> Table | None:
    """Return the mean score of each model of a sweep with its size, E, R, D and loss; None without such models.

    Only models at the recurrence that they were trained with count, and only metrics that are proportions.
    """
    records = [
        row
        for row in results.records()
        if row.get("run")
        and row["recurrence"] == row["trained_recurrence"]
        and str(row["metric"]).partition(",")[0] in PROPORTIONS
    ]
    if not records:
        return None
    for row in records:
        missing = [name for name in _OF_SWEEP if row[name] is None or row[name] != row[name]]
        if missing:
            raise InputError(
                f"results: {row['model']} of run {row['run']} has no {missing[0]!r}; models of a sweep have "
                f"{', '.join(_OF_SWEEP)}, as `loopscale eval SWEEP.toml --tidy` writes them"
            )
    known = {row["model"]: row for row in records}
    rows = [
        {**scores, **{name: known[scores["model"]][name] for name in _OF_SWEEP}}
        for scores in mean_scores(Table.from_records(records)).records()
    ]
    return Table.from_records(sorted(rows, key=lambda row: (row["experts"], row["recurrence"], row["training_flops"])))


def score_range(scores: Table) -> tuple[float, float]:
    """Return an axis range for all scores with their error bars, so that panels can be compared by eye."""
    score, error = (np.array(scores.columns[name], float) for name in ("score", "stderr"))
    low, high = float(np.min(score - error)), float(np.max(score + error))
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin


def significance(scores: Table) -> str:
    """Return a sentence on whether the scores differ by more than their standard errors; none without errors."""
    from scipy.stats import chi2

    score, error = (np.array(scores.columns[name], float) for name in ("score", "stderr"))
    if len(score) < 2 or not np.all(error > 0):
        return ""
    mean = np.average(score, weights=error**-2)
    squares, free = float(np.sum(((score - mean) / error) ** 2)), len(score) - 1
    chance = float(chi2.sf(squares, free))
    verdict = "are not significant" if chance >= 0.05 else "are significant"
    test = f"chi-squared {squares:.1f} for {free} degrees of freedom, p = {chance:.2g}"
    return f" Taken together, the differences between the models {verdict} ({test})."


def draw_sweep_downstream(
    table: Table, axes: Any | None = None, *, by: str = "recurrence", limits: tuple[float, float] | None = None
) -> Any:
    """Draw the scores of :func:`sweep_scores` against training compute, a curve for each value of ``by``.

    Marks tell sizes apart; a curve joins the models of one size, which differ in D. ``limits`` is the range of scores.
    """
    axes = or_new(axes)
    axes.set_xscale("log")
    sizes = list(dict.fromkeys(table.columns["size"]))
    symbol, fixed, fixed_symbol = ("R", "experts", "E") if by == "recurrence" else ("E", "recurrence", "R")
    for index, ((value,), rows) in enumerate(sorted(groups(table, by).items())):
        for shape, size in enumerate(sizes):
            curve = sorted((row for row in rows if row["size"] == size), key=lambda row: row["training_flops"])
            if curve:
                _points(axes, curve, "training_flops", index, shape, f"{symbol} = {value:g}, {size}")
    _compute_ticks(axes, sorted(set(table.columns["training_flops"])))
    legend(axes, 2)
    if limits is not None:
        axes.set_ylim(*limits)
    title = f"{_group_title(table)}, {fixed_symbol} = {next(table.records())[fixed]:g}"
    return finish(axes, title, "training compute (FLOPs)", _score_label(table))


def draw_loss_to_accuracy(table: Table, axes: Any | None = None) -> Any:
    """Draw the scores of :func:`sweep_scores` against validation loss, with the logistic curve fitted to them."""
    axes = or_new(axes)
    for index, ((E,), rows) in enumerate(sorted(groups(table, "experts").items())):
        _points(axes, rows, "validation_loss", index, index, f"E = {E:g}", line="none")
    losses, scores = (np.array(table.columns[name], float) for name in ("validation_loss", "score"))
    note = ""
    try:
        curve = fit_accuracy(losses, scores)
    except InputError as error:
        note = f"; {error}"
    else:
        grid = np.linspace(losses.min(), losses.max(), 100)
        label = f"logistic, rmse {curve.rmse:.2g}" + ("" if curve.informative else " (no better than a constant)")
        axes.plot(
            grid, curve(grid), color="0.3", linewidth=1.2, linestyle="-" if curve.informative else ":", label=label
        )
    legend(axes, 2)
    return finish(axes, _group_title(table) + note, "validation loss (nats per token)", _score_label(table))


def draw_scores_by_recurrence(table: Table, axes: Any | None = None) -> Any:
    """Draw the scores of :func:`mean_scores` against test-time recurrence; a model with one R is a level line."""
    axes = or_new(axes)
    for index, ((model,), rows) in enumerate(groups(table, "model").items()):
        rows = sorted(rows, key=lambda row: row["recurrence"])
        if len(rows) == 1:
            label = f"{model} (R = {rows[0]['recurrence']:g})"
            axes.axhline(rows[0]["score"], color=colour(index), linestyle="--", linewidth=1, label=label)
        else:
            _points(axes, rows, "recurrence", index, index, model)
    axes.xaxis.get_major_locator().set_params(integer=True)
    legend(axes, 2)
    return finish(axes, _group_title(table), RECURRENCE + " at test time", _score_label(table))


def draw_psi(table: Table, axes: Any | None = None) -> Any:
    """Draw Psi against R for each E, with its spread; columns ``experts, recurrence, psi, spread``."""
    axes = or_new(axes)
    for index, ((E,), rows) in enumerate(groups(table, "experts").items()):
        rows = sorted(rows, key=lambda row: row["recurrence"])
        R = [row["recurrence"] for row in rows]
        axes.errorbar(
            R, [row["psi"] for row in rows], [_known(row.get("spread")) for row in rows], color=colour(index),
            marker=marker(index), markersize=3.5, linewidth=1.2, elinewidth=0.8, capsize=2, label=f"E = {E:g}",
        )  # fmt: skip
    axes.set_xticks(sorted(set(table.columns["recurrence"])))
    legend(axes, 4)
    return finish(axes, "Expert-path diversity (bars: ± 1 std)", RECURRENCE, "Ψ (distinct experts per active one)")


PASS_PANELS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Loss by test-time R", LOSS, {"loss": "loss"}),
    ("Overlap of experts", "Jaccard index", {"overlap_previous": "previous pass", "overlap_first": "first pass"}),
    ("State", "relative", {"change": "change in this pass", "distance": "distance to the fixed point"}),
)
"""Title, label and curves of each panel."""


def draw_passes(table: Table, panels: list[Any]) -> list[Any]:
    """Draw loss, overlap of experts and change of the state by pass; columns that the table lacks are left out."""
    R = table.columns["recurrence"]
    for axes, (title, label, curves) in zip(panels, PASS_PANELS, strict=True):
        for index, (name, text) in enumerate(curves.items()):
            if name in table.columns:
                axes.plot(R, table.columns[name], color=colour(index), marker=marker(index), markersize=3.5, label=text)
        if len(curves) > 1 and axes.lines:
            legend(axes, 1)
        finish(axes, title, RECURRENCE, label)
    return panels


def draw_training(table: Table, axes: Any | None = None) -> Any:
    """Draw training loss against tokens, a curve for each ``run``; columns ``step, tokens, loss``."""
    axes = or_new(axes)
    runs = groups(table, "run") if "run" in table.columns else {("loss",): list(table.records())}
    for index, ((run,), rows) in enumerate(runs.items()):
        axes.plot(
            [row["tokens"] for row in rows], [row["loss"] for row in rows], color=colour(index), linewidth=1, label=run
        )
    axes.set_xscale("log")
    powers(axes.xaxis)
    legend(axes, 2)
    return finish(axes, "Training", "training tokens D", LOSS)


def draw_test_time(table: Table, axes: Any | None = None) -> Any:
    """Draw the loss of a checkpoint against the recurrence it is run at; columns ``recurrence, loss, stderr``.

    A ``model`` column makes a curve for each.
    """
    axes = or_new(axes)
    models = groups(table, "model") if "model" in table.columns else {("",): list(table.records())}
    for index, ((model,), rows) in enumerate(models.items()):
        rows = sorted(rows, key=lambda row: row["recurrence"])
        named = {"label": model} if model else {}
        axes.errorbar(
            [row["recurrence"] for row in rows], [row["loss"] for row in rows],
            [_known(row.get("stderr")) for row in rows], color=colour(index), marker=marker(index), markersize=3.5,
            linewidth=1.2, capsize=2, **named,
        )  # fmt: skip
    if "model" in table.columns:
        legend(axes, 2)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return finish(axes, "Test-time recurrence", RECURRENCE + " at test time", LOSS)


def _points(
    axes: Any, rows: Sequence[Mapping[str, Any]], x: str, index: int, shape: int, label: str, line: str = "-"
) -> None:
    axes.errorbar(
        [row[x] for row in rows], [row["score"] for row in rows], [_known(row["stderr"]) for row in rows],
        color=colour(index), marker=marker(shape), markersize=4, linewidth=1.2, elinewidth=0.8, capsize=2, label=label,
        linestyle=line,
    )  # fmt: skip


def _known(value: float | None) -> float:
    """Return a spread to draw, zero where it is not known."""
    return 0.0 if value is None or value != value else value


def _group_title(table: Table) -> str:
    first = next(table.records())
    return f"{first['group'].capitalize()} ({first['tasks']} task{'s' if first['tasks'] != 1 else ''})"


def _compute_ticks(axes: Any, budgets: Sequence[float]) -> None:
    """Put ticks at the budgets where they are few, and leave a margin."""
    axes.set_xlim(budgets[0] / 2, budgets[-1] * 2)
    powers(axes.xaxis)
    apart = [budgets[0], *(later for earlier, later in pairwise(budgets) if later > 1.1 * earlier)]
    if len(apart) <= 4:
        axes.set_xticks(apart, [scientific(budget) for budget in apart])


def _score_label(table: Table) -> str:
    return "mean score (%)" if max(table.columns["score"]) > 1 else "mean score (fraction)"
