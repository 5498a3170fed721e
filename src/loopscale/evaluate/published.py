"""Published results to compare with, marked as such."""

from __future__ import annotations

from dataclasses import dataclass

from loopscale.evaluate.suites import DATA, SCHEMA
from loopscale.files import Fields, read_toml, versioned


@dataclass(frozen=True)
class PublishedRow:
    """One row of a published table, in percent, as printed."""

    model: str
    recurrence: int
    compute: float
    """Inference compute relative to the table's baseline."""
    overall: float
    scores: dict[str, float]
    """By the label of the benchmark."""


@dataclass(frozen=True)
class PublishedTable:
    """A table that others measured."""

    source: str
    suite: str
    training_flops: float
    rows: tuple[PublishedRow, ...]


def case_study() -> PublishedTable:
    """Return the paper's table of downstream results at matched training compute: its numbers, not ours."""
    path = DATA / "case_study.toml"
    fields = versioned(read_toml(path), str(path), "published-results", SCHEMA)
    table = PublishedTable(
        source=fields.take("source", str),
        suite=fields.take("suite", str),
        training_flops=fields.take("training_flops", float),
        rows=tuple(_row(Fields(each, f"{path}: row")) for each in fields.take("row", list)),
    )
    fields.done()
    return table


def _row(fields: Fields) -> PublishedRow:
    row = PublishedRow(
        model=fields.take("model", str),
        recurrence=fields.take("recurrence", int),
        compute=fields.take("compute", float),
        overall=fields.take("overall", float),
        scores=fields.numbers("scores"),
    )
    fields.done()
    return row
