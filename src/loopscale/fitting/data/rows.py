"""Rows of a sweep from a table: units applied, rows chosen, incomplete and repeated ones left out, the rest checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.fitting.data.cell_checks import check_columns, check_plausible
from loopscale.fitting.data.columns import BITS_PER_BYTE, NON_EMBEDDING, find_columns, normal_name
from loopscale.fitting.data.counts import scale, stated_units
from loopscale.fitting.data.reader import TableReader
from loopscale.fitting.data.readers import RawTable
from loopscale.fitting.data.runs import crashed, distinct, finished, run_names, weight
from loopscale.fitting.data.suspicions import suspicions
from loopscale.scaling import Points


@dataclass(frozen=True, eq=False)
class Rows:
    """What a table holds, in raw counts."""

    points: Points
    loss: FloatArray
    run: NDArray[np.str_]
    finished: BoolArray | None
    notes: tuple[str, ...]
    weight: FloatArray | None
    loss_unit: str
    non_embedding: bool
    """Whether the header says that embeddings are left out."""
    extra: dict[str, NDArray[Any]]
    """All columns of the table by their own names."""
    numbers: IntArray
    """The line of the file, or the row of the frame, that each row comes from."""
    number_unit: str
    skipped: tuple[str, ...] = ()
    """What was left out, in a few words each."""
    columns_used: Mapping[str, str] = field(default_factory=dict)
    """The column of each quantity by its symbol."""
    warnings: tuple[tuple[str, str], ...] = ()
    """What looks wrong: a sentence, and what to do about it."""
    named_runs: bool = False


def read_rows(
    table: RawTable,
    columns: Mapping[str, str],
    units: Mapping[str, float],
    keep: str | None = None,
    strict: bool = False,
) -> Rows:
    """Return the rows of a table, or say what is wrong with it, and where.

    ``keep`` chooses rows before any cell is judged. Rows without a loss, a size or tokens are left out and counted in
    a note; ``strict`` refuses them.
    """
    reader = TableReader(table, find_columns(table.columns, columns, table.source), notes=list(table.notes))
    check_columns(reader)
    reader.read_numbers()
    scale(reader, stated_units(units, table.source))
    reader.derive()
    if keep is not None:
        reader.keep(keep)
    if not strict:
        reader.leave_out_incomplete()
    points, loss = reader.points(), reader.values["loss"]
    if not strict and (lost := crashed(reader)).any():
        reader.choose(~lost)
        points, loss = points.rows(~lost), loss[~lost]
    once = distinct(reader, points, loss)
    reader.choose(once)
    points, loss = points.rows(once), loss[once]
    run = run_names(reader, points)
    check_plausible(reader, points)
    warnings = suspicions(reader.table, reader.columns, points, loss, run if reader.named_runs else None)
    size = reader.columns.get("active")
    return Rows(
        points, loss, run, finished(reader),
        weight=weight(reader),
        notes=tuple(reader.notes),
        loss_unit="bits per byte" if normal_name(reader.columns["loss"].name) in BITS_PER_BYTE else "nats",
        non_embedding=size is not None and normal_name(size.name) in NON_EMBEDDING,
        extra=reader.extra,
        numbers=reader.table.numbers,
        number_unit=reader.table.unit,
        skipped=tuple(reader.skipped),
        columns_used=reader.columns_used(),
        warnings=(*reader.warnings, *warnings),
        named_runs=reader.named_runs,
    )  # fmt: skip
