"""Scores of the models of a sweep: along E and along R at equal compute, and against their loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loopscale.core.errors import InputError
from loopscale.core.tables import Table
from loopscale.evaluate.curves import fit_accuracy
from loopscale.evaluate.rows import PROPORTIONS
from loopscale.figures.curves import draw_points, groups, or_zero
from loopscale.figures.scores import OVERALL, compute_ticks, group_title, mean_scores, present_groups, score_label
from loopscale.figures.style import colour, finish, legend, marker, or_new

_OF_SWEEP = ("size", "experts", "tokens", "validation_loss")
"""Columns of a sweep's models that the figure needs."""


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
            X, Y, [or_zero(error) for error in errors], color=colour(shades[name]), marker=marker(sizes.index(size)),
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
    compute_ticks(axes, sorted({row["training_flops"] for row in measured}))
    legend(axes, 4)
    if limits is not None:
        axes.set_ylim(*limits)
    title = f"{group_title(table)}, {next(table.records())['fixed']}"
    return finish(axes, title, "training compute (FLOPs)", score_label(table))


MANY = 40
"""Models from which points and error bars are drawn finer."""


def draw_loss_to_accuracy(table: Table, axes: Any | None = None) -> Any:
    """Draw the scores of ``sweep_scores`` against validation loss, with the logistic curve fitted to them."""
    axes = or_new(axes)
    for index, ((E,), rows) in enumerate(sorted(groups(table, "experts").items())):
        draw_points(axes, rows, "validation_loss", index, index, f"E = {E:g}", line="none")
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
    return finish(axes, group_title(table) + note, "validation loss (nats per token)", score_label(table))
