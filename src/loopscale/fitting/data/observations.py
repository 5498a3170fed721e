"""Observations: losses seen in training, and what was trained."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.files import is_file
from loopscale.core.quantities import count_of, counted
from loopscale.core.tables import Table
from loopscale.fitting.data.again import is_law_file, read_again
from loopscale.fitting.data.budgets import balanced_weights
from loopscale.fitting.data.folders import is_run_folder
from loopscale.fitting.data.keep import best_rows, chosen_rows, row_symbols
from loopscale.fitting.data.readers import (
    RawTable,
    columns_table,
    csv_table,
    frame_table,
    of_history,
    read_table,
    records_table,
)
from loopscale.fitting.data.runs import models
from loopscale.fitting.data.wandb import is_project
from loopscale.scaling import Counting, Points, Reading

if TYPE_CHECKING:
    from loopscale.fitting.schema import DataRecord

POINT_COLUMNS = {
    "N_act (raw)": "active",
    "E": "experts",
    "R": "recurrence",
    "N_loop (raw)": "loop",
    "N_total (raw)": "total",
    "unique_tokens (raw)": "unique_tokens",
    "D (raw)": "tokens",
}
"""The columns in which counts are written, and the fields of ``Points`` that they hold."""
COUNTING = "counting"
"""The column in which a sweep's export states what its parameters count, as ``--counts`` does."""


@dataclass(frozen=True, eq=False)
class Observations:
    """Losses seen in training, and what was trained. ``of`` reads them from a file, a frame or a public sweep."""

    points: Points
    """One-dimensional arrays of one length, in raw counts."""
    loss: FloatArray
    run: NDArray[np.str_]
    """The run of each row; several rows of one run are not independent."""
    source: str
    """What produced the rows: a file, a sweep, a simulation."""
    counts: Counting
    """Whether the counts include embeddings."""
    notes: tuple[str, ...] = ()
    """What was detected, assumed or left out on reading."""
    finished: BoolArray | None = None
    """False where a row is a checkpoint in mid-schedule; None where that is not known."""
    weight: FloatArray | None = None
    """How much each row counts in a fit; None where all count alike."""
    loss_unit: str = "nats"
    """Unit of the losses: nats (per token) or bits per byte."""
    counts_assumed: bool = False
    """Whether ``counts`` is a default that neither the file nor the user stated."""
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Every column of the file by its own name, for expressions that choose rows."""
    name: str = "fitted"
    """A short name of the sweep, which a law fitted to it takes over."""
    numbers: IntArray | None = None
    """The line of the file, or the row of the frame, that each row comes from; None where they were not read."""
    number_unit: str = "row"
    """What ``numbers`` count: "line" or "row"."""
    skipped: tuple[str, ...] = ()
    """What was left out on reading, in a few words each; ``notes`` say it too."""
    columns_used: Mapping[str, str] = field(default_factory=dict)
    """The column of the file that each quantity was read from, by its symbol, with the unit if it is not plain."""
    warnings: tuple[tuple[str, str], ...] = ()
    """What looks wrong in the table: a sentence, and what to do about it."""
    named_runs: bool = True
    """Whether the names of runs are the file's own, so that expressions can use them."""
    reading: Reading = field(default_factory=Reading)
    """Where the rows come from and how they were read."""

    def __post_init__(self) -> None:
        count = len(self.loss)
        p = self.points
        columns = (p.active, p.tokens, p.recurrence, p.experts, p.loop, p.total, p.unique_tokens, self.run,
                   self.finished, self.weight, self.numbers)  # fmt: skip
        if any(column is not None and np.shape(column) != (count,) for column in columns):
            raise InputError(
                f"points, run and finished should all have one entry for each of {count} losses", where=self.source
            )
        bad = np.flatnonzero(~(np.isfinite(self.loss) & (self.loss > 0)))
        if len(bad):
            raise InputError(
                f"{self.place(int(bad[0]))}: loss is {self.loss[bad[0]]:g}",
                where=self.source, remedy="it should be finite and above zero",
            )  # fmt: skip

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def runs(self) -> NDArray[np.str_]:
        """The distinct runs, in order of first appearance."""
        _, first = np.unique(self.run, return_index=True)
        return self.run[np.sort(first)]

    def place(self, k: int) -> str:
        """Return the place of row ``k`` (from 0) in its source, as messages name it: ``line 22`` of a file."""
        return f"row {k + 1}" if self.numbers is None else f"{self.number_unit} {self.numbers[k]}"

    def where(self, chosen: BoolArray | IntArray | slice) -> Observations:
        """Return the chosen rows only, by mask or by index (an index may repeat)."""
        return replace(
            self,
            points=self.points.rows(chosen),
            loss=self.loss[chosen],
            run=self.run[chosen],
            finished=None if self.finished is None else self.finished[chosen],
            weight=None if self.weight is None else self.weight[chosen],
            numbers=None if self.numbers is None else self.numbers[chosen],
            extra={name: column[chosen] for name, column in self.extra.items()},
        )

    @property
    def digest(self) -> str:
        """A hash of the observed numbers, independent of the file format."""
        p = self.points
        columns = [p.active, p.tokens, p.recurrence, p.experts, self.loss]
        return hashlib.sha256(np.stack(columns).tobytes()).hexdigest()

    def keep(self, expression: str) -> Observations:
        """Return the rows for which an expression of the columns holds, like ``D/N >= 20`` or ``width == 512``.

        N, D, E, R, C (training FLOPs), U (unique tokens) and loss are in raw counts; other columns are named as in the
        file.
        """
        counts = {name: getattr(self.points, name) for name in POINT_COLUMNS.values()}
        symbols = row_symbols({name: values for name, values in counts.items() if values is not None}, self.loss)
        mask, note = chosen_rows(expression, {**self.extra, "run": self.run, **symbols})
        reading = self.reading.narrowed(expression)
        return replace(self.where(mask), notes=(*self.notes, note), reading=reading)

    def best_of(self) -> Observations:
        """Return the lowest loss of each model and token count: of rows that differ only in other settings."""
        rows = best_rows(np.column_stack([models(self.points), self.points.tokens, self.points.unique]), self.loss)
        note = f"best of each model and token count: {len(rows)} of {len(self)} rows"
        return replace(self.where(rows), notes=(*self.notes, note))

    def balanced(self) -> Observations:
        """Return the rows with weights such that each compute budget counts alike, however many runs it has."""
        weights, count = balanced_weights(self.points.train_flops, self.weight)
        note = f"each of {counted(count, 'compute budget')} counts alike"
        return replace(self, weight=weights, notes=(*self.notes, note), reading=replace(self.reading, balance=True))

    @classmethod
    def of(
        cls,
        data: Any,
        *,
        columns: Mapping[str, str] | None = None,
        units: Mapping[str, float | str] | None = None,
        counts: Counting | str | None = None,
        keep: str | None = None,
        best_of: bool = False,
        balance: bool = False,
        strict: bool = False,
        name: str | None = None,
    ) -> Observations:
        """Read observations from a file, a data frame, columns by name, or a public sweep by its name.

        Files are CSV, TSV, JSON lines or Parquet; the file of a fitted law gives the runs behind it, read as they
        were then. ``columns`` names the column of a field where the header does not show it, as in
        ``{"loss": "c4_en"}``; ``units`` states the unit of a count, as in ``{"active": "1B"}``, where neither the
        header nor the magnitude shows it; ``counts`` says whether parameter counts include embeddings.

        ``keep`` chooses rows by an expression (``keep``), before any cell is judged; ``best_of`` keeps the lowest
        loss of each model and token count (``best_of``); ``balance`` weights the rows so that each compute budget
        counts alike (``balanced``). Rows without a loss, a size or tokens are left out and counted in ``notes``;
        ``strict`` refuses them. ``name`` is what to call the sweep and its law.
        """
        if is_law_file(data):
            choices = {"columns": columns, "units": units, "counts": counts, "keep": keep, "best_of": best_of,
                       "balance": balance, "strict": strict}  # fmt: skip
            rows = read_again(data, cls.of, choices)
            return rows if name is None else replace(rows, name=name)
        if isinstance(data, str) and not (
            Path(data).suffix or is_file(data) or is_run_folder(data) or is_project(data)
        ):
            from loopscale.fitting.data.public import named_sweep  # which reads observations

            data = replace(named_sweep(data), name=data, reading=Reading(data))
        if isinstance(data, cls):
            if columns or units or counts:
                raise InputError("`columns`, `units` and `counts` are for files and frames", where=data.source)
            rows = data if keep is None else data.keep(keep)
        else:
            from loopscale.fitting.data.rows import read_rows  # which builds observations

            sizes = {field: count_of(unit, "units") for field, unit in (units or {}).items()}
            rows = read_rows(_table(data, name or "frame"), columns or {}, sizes, counts, keep, strict)
            path = str(data) if isinstance(data, str | Path) else ""
            stated = counts.value if isinstance(counts, Counting) else counts
            reading = Reading(path, dict(columns or {}), sizes, stated, keep, strict=strict)
            rows = replace(rows, reading=reading, name=Path(path).name.split(".")[0] if path else rows.name)
        rows = replace(rows.best_of(), reading=replace(rows.reading, best_of=True)) if best_of else rows
        rows = rows.balanced() if balance and not rows.reading.balance else rows
        return rows if name is None else replace(rows, name=name)

    @classmethod
    def from_csv(
        cls,
        text: str,
        *,
        source: str = "runs.csv",
        name: str | None = None,
        columns: Mapping[str, str] | None = None,
        counts: Counting | str | None = None,
    ) -> Observations:
        """Read the text of a CSV file; ``source`` names it in errors. Other options are those of ``of``."""
        from loopscale.fitting.data.rows import read_rows

        rows = read_rows(csv_table(text, source), columns or {}, {}, counts)
        return rows if name is None else replace(rows, name=name)

    def columns(self) -> dict[str, list[Any]]:
        """Return the rows under names that ``of`` reads, in raw counts."""
        columns: dict[str, Any] = {"run": self.run}
        for name, point in POINT_COLUMNS.items():
            columns |= {} if (values := getattr(self.points, point)) is None else {name: values}
        columns["bpb" if self.loss_unit == "bits per byte" else "loss"] = self.loss
        columns |= {} if self.finished is None else {"finished": self.finished}
        columns |= {} if self.weight is None else {"weight": self.weight}
        return {name: np.asarray(column).tolist() for name, column in columns.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the rows and how they were read as plain values, as a fit's file holds them."""
        return {
            "columns": self.columns(),
            "source": self.source,
            "name": self.name,
            "counts": self.counts.value,
            "counts_assumed": self.counts_assumed,
            "notes": list(self.notes),
            "numbers": None if self.numbers is None else self.numbers.tolist(),
            "number_unit": self.number_unit,
            "skipped": list(self.skipped),
            "columns_used": dict(self.columns_used),
            "warnings": [list(pair) for pair in self.warnings],
            "named_runs": self.named_runs,
            "reading": asdict(self.reading),
        }

    @classmethod
    def from_record(cls, record: DataRecord, where: str) -> Observations:
        """Return the observations of a fit's file; ``where`` names it in errors."""
        loss = "bpb" if "bpb" in record.columns else "loss"
        needed = ("run", "N_act (raw)", "E", "R", "D (raw)", loss)
        allowed = (*needed, *POINT_COLUMNS, "finished", "weight")
        for name in needed:
            if name not in record.columns:
                raise InputError(f"there is no column {name!r}", where=f"{where}: data")
        numbers: dict[str, FloatArray] = {}
        for name, cells in record.columns.items():
            if name not in allowed:
                raise InputError(f"unknown column {shown(name)}{nearest(name, allowed)}", where=f"{where}: data")
            try:
                numbers |= {} if name == "run" else {name: np.array(cells, dtype=np.float64)}
            except (TypeError, ValueError):
                raise InputError(f"column {name!r} should hold numbers", where=f"{where}: data") from None
        try:
            return cls(
                points=Points(**{point: numbers[name] for name, point in POINT_COLUMNS.items() if name in numbers}),
                loss=numbers[loss],
                run=np.array([str(cell) for cell in record.columns["run"]], dtype=np.str_),
                source=record.source,
                counts=record.counts,
                notes=tuple(record.notes),
                finished=numbers["finished"].astype(bool) if "finished" in numbers else None,
                weight=numbers.get("weight"),
                loss_unit="bits per byte" if loss == "bpb" else "nats",
                counts_assumed=record.counts_assumed,
                name=record.name,
                numbers=None if record.numbers is None else np.array(record.numbers, dtype=np.int64),
                number_unit=record.number_unit,
                skipped=tuple(record.skipped),
                columns_used=record.columns_used,
                warnings=tuple(record.warnings),
                named_runs=record.named_runs,
                reading=Reading(**record.reading.model_dump()),
            )
        except InputError as error:
            raise error.within(f"{where}: data") from None

    def csv(self) -> str:
        """Return the rows as CSV text that ``from_csv`` reads."""
        return Table(self.columns()).csv()

    def to_csv(self, path: str | Path) -> None:
        """Write the rows as ``of`` reads them."""
        Table(self.columns()).save(path)


def _table(data: Any, label: str) -> RawTable:
    if isinstance(data, str | Path):
        return read_table(data)
    if isinstance(data, Mapping):
        return of_history(columns_table({str(name): list(cells) for name, cells in data.items()}, label))
    if isinstance(data, list | tuple):
        return of_history(records_table(data, label))
    return frame_table(data, label)
