"""The paper's results table: models and recurrences against benchmarks, with compute, gains and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from loopscale.core.numerics import wilson_interval
from loopscale.core.tables import Table
from loopscale.evaluate.rows import Row, is_proportion
from loopscale.evaluate.store import PREFERRED
from loopscale.evaluate.suites import OVERALL, Suite


def tidy(rows: Sequence[Row]) -> Table:
    """Return one line for each score: what other tools plot, downstream results against training compute among it."""
    names = ("model", "recurrence", "task", "metric", "value", "stderr", "training_flops", "size", "run", "experts",
             "trained_recurrence", "tokens", "validation_loss", "kv", "relative_compute")  # fmt: skip
    lines = [
        (
            row.title,
            row.passes if row.exit else row.recurrence,
            label,
            row.metrics.get(label, "mean"),
            score.value,
            score.stderr,
            row.training_flops,
            row.size,
            row.run,
            row.experts,
            row.trained_recurrence,
            row.tokens,
            row.validation_loss,
            row.kv,
            row.compute,
        )
        for row in rows
        for label, score in row.scores.items()
    ]
    return Table({name: [line[column] for line in lines] for column, name in enumerate(names)})


def wide(suite: Suite, rows: Sequence[Row]) -> Table:
    """Return the results table in numbers: a column for each score, its standard error and its 95% interval."""
    columns: dict[str, list[object]] = {
        "model": [row.title for row in rows],
        "recurrence": [row.recurrence for row in rows],
        "exit": [row.exit for row in rows],
        "kv": [row.kv for row in rows],
        "passes": [row.passes for row in rows],
        "relative_compute": [row.compute for row in rows],
    }
    for label in labels(suite, rows):
        scores = [row.scores.get(label) for row in rows]
        columns[label] = [None if score is None else score.value for score in scores]
        columns[f"{label}_stderr"] = [None if score is None else score.stderr for score in scores]
        spans = [interval(suite, row, label) for row in rows]
        if any(span is not None for span in spans):
            columns[f"{label}_low"] = [None if span is None else span[0] for span in spans]
            columns[f"{label}_high"] = [None if span is None else span[1] for span in spans]
    columns["gain"] = [row.gain for row in rows]
    return Table(columns)


def printed(suite: Suite, rows: Sequence[Row], only: Sequence[str] | None = None) -> Table:
    """Return the table as people read it: scores and means with 95% intervals, and the gain over R = 1."""
    columns = {
        "model": [row.title for row in rows],
        "R": [row.at for row in rows],
        "compute": ["" if row.compute is None else f"{row.compute:.1f}×" for row in rows],
    }
    shots = {benchmark.label: benchmark.shots for benchmark in suite.benchmarks}
    for label in only if only is not None else labels(suite, rows):
        title = f"{label} ({shots[label]})" if shots.get(label) else label
        columns[title] = [_cell(suite, row, label) for row in rows]
    return Table(columns)


def labels(suite: Suite, rows: Sequence[Row]) -> list[str]:
    """Return the columns that some row has a score for: benchmarks, then means, the overall one last."""
    names = [benchmark.label for benchmark in suite.benchmarks] + [*suite.categories(), OVERALL]
    return [name for name in names if any(name in row.scores for row in rows)]


def _is_share(metric: str) -> bool:
    """Tell whether a metric is the share of items that are right, which a correlation is not."""
    return is_proportion(metric) and metric.partition(",")[0] != "mcc"


def interval(suite: Suite, row: Row, label: str) -> tuple[float, float] | None:
    """Return the 95% interval of a score: Wilson's for a share of right items; for a mean, put together from these.

    A mean's distance to each end is the root of the summed squares of its tasks' distances, over their number (the
    MOVER method): tasks without a right answer do not make it certain. None where items or errors are not known.
    """
    score = row.scores.get(label)
    if score is None or score.stderr is None:
        return None
    members = {**suite.categories(), OVERALL: [one for one in suite.benchmarks if one.scored]}.get(label)
    if members is None:
        return _of_task(row, label) if _is_share(row.metrics.get(label, PREFERRED[0])) else None
    known = [one.label for one in members if is_proportion(row.metrics.get(one.label, PREFERRED[0]))]
    spans = [(row.scores[name].value, _of_task(row, name)) for name in known if name in row.scores]
    if not spans or any(span is None for _, span in spans):
        return None
    below, above = (
        math.sqrt(sum((value - span[end]) ** 2 for value, span in spans if span is not None)) / len(spans)
        for end in (0, 1)
    )
    return score.value - below, score.value + above


def _of_task(row: Row, label: str) -> tuple[float, float] | None:
    """Return the 95% interval of one task: Wilson's for a share of items, normal for other proportions."""
    score, items = row.scores[label], row.samples.get(label)
    if items and _is_share(row.metrics.get(label, PREFERRED[0])):
        low, high = wilson_interval(score.value / 100, items)
        return 100 * low, 100 * high
    if score.stderr is None or not items:
        return None
    return score.value - 1.96 * score.stderr, score.value + 1.96 * score.stderr


def _cell(suite: Suite, row: Row, label: str) -> str:
    score = row.scores.get(label)
    if score is None:
        return "–"
    metric = row.metrics.get(label, PREFERRED[0])
    digits = 1 if is_proportion(metric) else 3
    error = "" if score.stderr is None else f" ± {score.stderr:.{digits}f}"
    span = interval(suite, row, label)
    if span is not None:
        low, high = span
        places = 0 if high - low >= 10 else 1
        error = f" [{low:.{places}f}, {high:.{places}f}]"
    gain = f" ({row.gain:+.1f})" if label == OVERALL and row.gain is not None else ""
    return f"{score.value:.{digits}f}{error}{gain}"
