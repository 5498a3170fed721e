"""Rows of a sweep from a table: units applied, rows chosen, incomplete and repeated ones left out, the rest checked."""

from __future__ import annotations

from collections.abc import Mapping

from loopscale.core.errors import choice
from loopscale.fitting.data.cell_checks import check_columns, check_plausible
from loopscale.fitting.data.columns import BITS_PER_BYTE, NON_EMBEDDING, find_columns, normal_name
from loopscale.fitting.data.counts import scale, stated_units
from loopscale.fitting.data.observations import COUNTING, Observations
from loopscale.fitting.data.reader import TableReader
from loopscale.fitting.data.readers import RawTable
from loopscale.fitting.data.runs import crashed, distinct, finished, run_names, weight
from loopscale.fitting.data.suspicions import suspicions
from loopscale.scaling import Counting


def read_rows(
    table: RawTable,
    columns: Mapping[str, str],
    units: Mapping[str, float],
    counts: Counting | str | None = None,
    keep: str | None = None,
    strict: bool = False,
) -> Observations:
    """Return the rows of a table, or say what is wrong with it, and where; options are those of ``Observations.of``."""
    counting = counts if isinstance(counts, Counting | None) else choice(Counting, counts, "counts")
    stated = {str(cell) for cell in table.columns.get(COUNTING, ())}
    if counting is None and len(stated) == 1 and stated <= {known.value for known in Counting}:
        counting = Counting(stated.pop())
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
    non_embedding = size is not None and normal_name(size.name) in NON_EMBEDDING
    return Observations(
        points, loss, run,
        source=table.source,
        counts=counting or Counting.WITHOUT_EMBEDDINGS,
        finished=finished(reader),
        weight=weight(reader),
        notes=tuple(reader.notes),
        loss_unit="bits per byte" if normal_name(reader.columns["loss"].name) in BITS_PER_BYTE else "nats",
        counts_assumed=counting is None and not non_embedding,
        extra=reader.extra,
        numbers=reader.table.numbers,
        number_unit=reader.table.unit,
        skipped=tuple(reader.skipped),
        columns_used=reader.columns_used(),
        warnings=(*reader.warnings, *warnings),
        named_runs=reader.named_runs,
    )  # fmt: skip
