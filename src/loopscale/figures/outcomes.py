"""Figures of trained models: scores, expert-path diversity, training and test-time-recurrence curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from loopscale.core.errors import InputError
from loopscale.core.quantities import format_power
from loopscale.core.tables import Table
from loopscale.evaluate.curves import fit_accuracy
from loopscale.evaluate.rows import PROPORTIONS
from loopscale.evaluate.suites import builtin_suites, load_suite
from loopscale.figures.style import LOSS, RECURRENCE, colour, finish, groups, legend, marker, or_new, powers

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
        _points(axes, rows, "training_flops", index, models.index(model), f"{model}, R = {R:g}")
    shared = [flops for (flops,), rows in groups(table, "training_flops").items() if len(rows) > 1]
    for flops in shared:
        axes.axvline(flops, color="0.5", linestyle="--", linewidth=0.8, zorder=0, gid="matched compute")
    _compute_ticks(axes, sorted(set(table.columns["training_flops"])))
    legend(axes, 2)
    return finish(
        axes, _group_title(table) + "; dashed: equal compute", "training compute (FLOPs)", _score_label(table)
    )


def _draw_matched(table: Table, axes: Any) -> Any:
    """Draw models of one training compute under one another."""
    rows = list(table.records())
    models = list(dict.fromkeys(row["model"] for row in rows))
    for order, row in enumerate(rows):
        index = models.index(row["model"])
        axes.errorbar(
            [row["score"]], [order], xerr=[_known(row["stderr"])], color=colour(index), marker=marker(index),
            markersize=4.5, elinewidth=0.8, capsize=2, linestyle="none", label=row["model"],
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [f"R = {row['recurrence']:g}" for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    legend(axes, 1)
    flops = format_power(rows[0]["training_flops"])
    return finish(axes, f"{_group_title(table)}, {flops} FLOPs", _score_label(table), "recurrence at test time")


def sweep_scores(results: Table, group: str = OVERALL) -> Table | None:
    """Return the mean score of each model of a sweep with its size, E, R, D and loss; None without such models.

    Only models at the recurrence that they were trained with count, and only metrics that are proportions.
    """
    records = _of_models(results)
    if not records:
        return None
    for row in records:
        missing = [name for name in _OF_SWEEP if row[name] is None or row[name] != row[name]]
        if missing:
            raise InputError(
                f"results: {row['model']} of run {row['run']} has no {missing[0]!r}; models of a sweep have "
                f"{', '.join(_OF_SWEEP)}, as `loopscale eval SWEEP.toml --tidy` writes them"
            )
    by_model = {row["model"]: row for row in records}
    rows = [
        {**scores, **{name: by_model[scores["model"]][name] for name in _OF_SWEEP}}
        for scores in mean_scores(Table.from_records(records), group).records()
    ]
    return Table.from_records(sorted(rows, key=lambda row: (row["experts"], row["recurrence"], row["training_flops"])))


def sweep_groups(results: Table) -> tuple[str, ...]:
    """Return what the figure of a sweep shows: ``overall``, and ``reasoning`` where every model has such a task."""
    present = present_groups(Table.from_records(_of_models(results)))
    return tuple(group for group in (OVERALL, "reasoning") if group in present)


def _of_models(results: Table) -> list[dict[str, Any]]:
    return [
        row
        for row in results.records()
        if row.get("run")
        and row["recurrence"] == row["trained_recurrence"]
        and str(row["metric"]).partition(",")[0] in PROPORTIONS
    ]


FIXED = {"experts": ("recurrence", 1.0), "recurrence": ("experts", 8.0)}
"""What is held fixed along each axis, and the paper's value of it: E varies at R = 1, and R at E = 8."""
MATCHED = {"experts": 5e20, "recurrence": 1e21}
"""FLOPs of the paper's comparisons along each axis."""
DENSE = "dense, R = 1"


def along(scores: Table, by: str) -> Table:
    """Return the models of ``sweep_scores`` that differ in ``by``, and what they score at one equal compute.

    The other axis is held at the paper's value, or else at the one with most models. Along R, the dense baseline
    (E = 1, R = 1) is added. ``curve`` names the value of ``by``; rows whose ``interpolated`` is true stand at the
    compute that most curves reach, between two models of one size, linearly in the logarithm of compute.
    """
    axis, wanted = FIXED[by]
    counts = Counter(scores.columns[axis])
    value = wanted if counts.get(wanted, 0) > 1 else max(counts, key=lambda each: (counts[each], -each))
    symbol = "E" if by == "experts" else "R"
    rows = [{**row, "curve": f"{symbol} = {row[by]:g}"} for row in scores.records() if row[axis] == value]
    if by == "recurrence" and value != 1:
        plain = [row for row in scores.records() if row["experts"] == 1 and row["recurrence"] == 1]
        rows = [{**row, "curve": DENSE} for row in plain] + rows
    rows = [{**row, "fixed": f"{'E' if axis == 'experts' else 'R'} = {value:g}", "interpolated": False} for row in rows]
    return Table.from_records(rows + _at_equal_compute(rows, MATCHED[by]))


def _at_equal_compute(rows: Sequence[Mapping[str, Any]], wanted: float) -> list[dict[str, Any]]:
    """Return the score of each curve at one compute: the wanted one, or that which most curves reach."""
    curves: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: float(row["training_flops"])):
        curves.setdefault((row["curve"], row["size"]), []).append(row)
    spans = {key: (float(each[0]["training_flops"]), float(each[-1]["training_flops"])) for key, each in curves.items()}

    def reached(flops: float) -> list[tuple[str, str]]:
        return [key for key, (low, high) in spans.items() if low < high and low <= flops <= high]

    if len({size for _, size in reached(wanted)}) < 2:
        wanted = max((end for span in spans.values() for end in span), key=lambda flops: len(reached(flops)))
    interpolated = []
    for key in reached(wanted) if len(reached(wanted)) > 1 else ():
        flops, score, error = (
            np.array([row[name] for row in curves[key]], float) for name in ("training_flops", "score", "stderr")
        )
        at = {
            "training_flops": wanted,
            "score": float(np.interp(np.log(wanted), np.log(flops), score)),
            "stderr": float(np.interp(np.log(wanted), np.log(flops), error)),
        }
        interpolated.append({**curves[key][0], **at, "model": "", "interpolated": True})
    return interpolated


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


def draw_sweep_downstream(table: Table, axes: Any | None = None, *, limits: tuple[float, float] | None = None) -> Any:
    """Draw the scores of ``along`` against training compute; ``limits`` is the range of scores.

    Colours tell the values of E or R apart, marks the sizes: the legend has one entry for each, not for each pair.
    The dashed line is one compute; a bar across it is a score interpolated there.
    """
    axes = or_new(axes)
    axes.set_xscale("log")
    curves, sizes = (list(dict.fromkeys(table.columns[name])) for name in ("curve", "size"))
    shades = {name: 6 if name == DENSE else order for order, name in enumerate(n for n in curves if n != DENSE)}
    shades |= {DENSE: 6}
    measured = [row for row in table.records() if not row["interpolated"]]
    many = len(measured) > MANY
    for (name, size), rows in groups(Table.from_records(measured), "curve", "size").items():
        rows = sorted(rows, key=lambda row: row["training_flops"])
        X, Y, errors = ([row[key] for row in rows] for key in ("training_flops", "score", "stderr"))
        axes.errorbar(
            X, Y, [_known(error) for error in errors], color=colour(shades[name]), marker=marker(sizes.index(size)),
            markersize=2.6 if many else 4, linewidth=0.7 if many else 1.2, elinewidth=0.5 if many else 0.8,
            capsize=0 if many else 2, gid=f"{name}, {size}",
        )  # fmt: skip
    for row in (row for row in table.records() if row["interpolated"]):
        axes.scatter(row["training_flops"], row["score"], s=45, marker="_", color=colour(shades[row["curve"]]),
                     linewidths=1.6, zorder=4, gid="interpolated")  # fmt: skip
    for flops in {row["training_flops"] for row in table.records() if row["interpolated"]}:
        axes.axvline(flops, color="0.5", linestyle="--", linewidth=0.8, zorder=0, gid="matched compute")
    for name in curves:
        axes.plot([], [], color=colour(shades[name]), linewidth=1.5, label=name)
    for order, size in enumerate(sizes):
        axes.plot([], [], color="0.35", marker=marker(order), markersize=4, linestyle="none", label=size)
    _compute_ticks(axes, sorted({row["training_flops"] for row in measured}))
    legend(axes, 4)
    if limits is not None:
        axes.set_ylim(*limits)
    title = f"{_group_title(table)}, {next(table.records())['fixed']}"
    return finish(axes, title, "training compute (FLOPs)", _score_label(table))


MANY = 40
"""Models from which points and error bars are drawn finer."""


def draw_loss_to_accuracy(table: Table, axes: Any | None = None) -> Any:
    """Draw the scores of ``sweep_scores`` against validation loss, with the logistic curve fitted to them."""
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
    """Draw the scores of ``mean_scores`` against test-time recurrence; a model with one R is a level line."""
    axes = or_new(axes)
    for index, ((model,), rows) in enumerate(groups(table, "model").items()):
        rows = sorted(rows, key=lambda row: row["recurrence"])
        if len(rows) == 1:
            label = f"{model} (R = {rows[0]['recurrence']:g})"
            axes.axhline(rows[0]["score"], color=colour(index), linestyle="--", linewidth=1, label=label)
        else:
            _points(axes, rows, "recurrence", index, index, model)
    legend(axes, 2)
    return finish(axes, _group_title(table), RECURRENCE + " at test time", _score_label(table))


def draw_psi(table: Table, axes: Any | None = None) -> Any:
    """Draw Psi against R for each E, with its spread; columns ``experts, recurrence, psi, spread``."""
    axes = or_new(axes)
    for index, ((E,), rows) in enumerate(groups(table, "experts").items()):
        rows = sorted(rows, key=lambda row: row["recurrence"])
        _points(axes, rows, "recurrence", index, index, f"E = {E:g}", y="psi", error="spread")
    axes.set_xticks(sorted(set(table.columns["recurrence"])))
    legend(axes, 4)
    return finish(axes, "Expert-path diversity (bars: ± 1 std)", RECURRENCE, "Ψ (experts per active one)")


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
        _points(axes, rows, "recurrence", index, index, model, y="loss")
    if "model" in table.columns:
        legend(axes, 2)
    return finish(axes, "Test-time recurrence", RECURRENCE + " at test time", LOSS)


def _points(
    axes: Any,
    rows: Sequence[Mapping[str, Any]],
    x: str,
    index: int,
    shape: int,
    label: str,
    *,
    y: str = "score",
    error: str = "stderr",
    line: str = "-",
) -> None:
    """Draw one curve of points with error bars where errors are known."""
    axes.errorbar(
        [row[x] for row in rows], [row[y] for row in rows], [_known(row.get(error)) for row in rows],
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
        axes.set_xticks(apart, [format_power(budget) for budget in apart])


def _score_label(table: Table) -> str:
    return "mean score (%)" if max(table.columns["score"]) > 1 else "mean score (fraction)"
