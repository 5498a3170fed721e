"""Tidy tables from files of the other packages: training metrics, evaluation results, Psi, test-time recurrence.

A file is CSV, TSV, Parquet or JSON lines. Each kind of table has columns that it must have; others are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.quantities import number_or_nan
from loopscale.core.tables import Table
from loopscale.fitting.data.readers import read_columns
from loopscale.scaling import PAPER


@dataclass(frozen=True)
class Kind:
    """What a table must hold: columns of text, columns of numbers, and numbers that may be missing."""

    name: str
    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    optional: tuple[str, ...] = ()
    other_names: Mapping[str, str] = field(default_factory=dict)
    """What an optional column is called elsewhere."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that must be there."""
        return self.texts + self.numbers


METRICS = Kind("training metrics", (), ("step", "tokens", "loss"))
"""A row for each step that was recorded; loss in nats per token."""
RESULTS = Kind(
    "evaluation results",
    ("model", "task", "metric"),
    ("recurrence", "value"),
    ("stderr", "training_flops", "experts", "trained_recurrence", "tokens", "validation_loss", "relative_compute"),
)
"""A row for each (model, recurrence, task); the other columns where they are known. Models of a sweep also have the
text columns ``size`` and ``run``."""
PSI = Kind("expert-path diversity", (), ("experts", "recurrence", "psi"), ("spread",), {"spread": "std_prompts"})
"""Psi of eq. expert-path-diversity and its standard deviation, as in ``loopscale routing --csv``."""
TEST_TIME = Kind("test-time recurrence", (), ("recurrence", "loss"), ("stderr",))
"""The loss of one checkpoint at each recurrence."""


MISSING = ("", "nan", "none")
"""Cells of an optional column that hold no number."""


def read_table(path: str | Path, kind: Kind) -> Table:
    """Read a table of one kind, its numbers checked."""
    return checked_table(read_columns(path), kind, str(path))


def checked_table(columns: dict[str, list[Any]], kind: Kind, where: str) -> Table:
    """Check the columns and turn the numbers into numbers; NaN where an optional one is missing."""
    for name in kind.columns:
        if name not in columns:
            raise InputError(
                f"{where}: column {name!r} is missing{nearest(name, columns)}; "
                f"a table of {kind.name} has {', '.join(kind.columns)}"
            )
    rows = len(columns[kind.columns[0]])
    if not rows:
        raise InputError("there are no rows", where=where)
    checked = dict(columns)
    for name in kind.numbers:
        checked[name] = [_number(cell, where, row, name) for row, cell in enumerate(columns[name], 1)]
    for name in kind.optional:
        cells = columns.get(name) or columns.get(kind.other_names.get(name, ""), [None] * rows)
        checked[name] = [
            math.nan if str(cell).strip().lower() in MISSING else _number(cell, where, row, name)
            for row, cell in enumerate(cells, 1)
        ]
    return Table(checked)


def paper_psi() -> Table:
    """Return the expert-path diversity that the paper prints."""
    table = PAPER["path_diversity"]
    rows = [
        {"experts": E, "recurrence": R, "psi": mean, "spread": spread}
        for E, means, spreads in zip(table["experts"], table["mean"], table["deviation"], strict=True)
        for R, mean, spread in zip(table["recurrences"], means, spreads, strict=True)
    ]
    return checked_table({name: [row[name] for row in rows] for name in rows[0]}, PSI, table["where"])


def paper_results() -> Table:
    """Return the scores of the paper's case study, its models marked with a dagger."""
    from loopscale.evaluate import case_study, load_suite, published_rows, tidy

    table = case_study()
    columns = {
        name: list(cells) for name, cells in tidy(published_rows(load_suite(table.suite), table)).columns.items()
    }
    return checked_table(columns, RESULTS, "case study")


def _number(cell: Any, where: str, row: int, name: str) -> float:
    value = number_or_nan(cell)
    if not math.isfinite(value) or isinstance(cell, bool):
        raise InputError(f"row {row}: {name} is {shown(cell)}", where=where, remedy="it should be a finite number")
    return value
