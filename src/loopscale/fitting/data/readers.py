"""Tables as they were written: CSV, TSV, JSON lines, Parquet and data frames, with the place of every row."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import narwhals as nw
import numpy as np

from loopscale.core.arrays import BoolArray, IntArray
from loopscale.core.errors import InputError, reason, shown
from loopscale.core.files import TABLE_ROWS, check_rows, gunzip, read_bytes
from loopscale.core.quantities import counted
from loopscale.fitting.data.folders import is_run_folder, run_records
from loopscale.fitting.data.wandb import chart_records, is_chart, is_history, is_project, last_rows, project_records

Columns = dict[str, list[Any]]


@dataclass(frozen=True, eq=False)
class RawTable:
    """Cells by column, and where each row stands in its source."""

    columns: Columns
    source: str
    """A file or another name, as errors call it."""
    unit: Literal["line", "row"]
    """What ``numbers`` count: lines of a text file, or rows from 1."""
    numbers: IntArray
    notes: tuple[str, ...] = ()
    """What was done on the way from the source."""

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, k: int) -> str:
        """Return where row ``k`` stands: ``line 22``."""
        return f"{self.unit} {self.numbers[k]}"

    def with_columns(self, columns: Columns) -> RawTable:
        """Return the same rows with other cells."""
        return replace(self, columns=columns)

    def rows(self, chosen: BoolArray | IntArray) -> RawTable:
        """Return some of the rows, each with its own place."""
        order = np.arange(len(self))[chosen]
        columns = {name: [cells[k] for k in order] for name, cells in self.columns.items()}
        return replace(self, columns=columns, numbers=self.numbers[order])


def read_table(path: str | Path) -> RawTable:
    """Read a ``.csv``, ``.tsv`` (either may be gzipped), ``.jsonl`` or ``.parquet`` file, or a folder of runs."""
    name = str(path).lower()
    if is_project(path):
        return records_table(project_records(str(path)), str(path))
    if is_run_folder(path):
        return records_table(run_records(path), str(path))
    if name.endswith((".jsonl", ".ndjson", ".jsonl.gz")):
        return jsonl_table(_text(path), str(path))
    if name.endswith((".parquet", ".pq")):
        return _parquet(path)
    if name.endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz")):
        return csv_table(_text(path), str(path), "\t" if ".tsv" in name else None)
    raise InputError(
        "this kind of file is not read",
        where=str(path),
        remedy="give .csv, .tsv, .jsonl, .parquet, trainer_state.json or a folder of runs",
    )


def read_columns(path: str | Path) -> Columns:
    """Read the columns of a file that :func:`read_table` reads."""
    return read_table(path).columns


def columns_table(columns: Columns, source: str) -> RawTable:
    """Return columns that are in memory already as a table; rows count from 1."""
    count = len(next(iter(columns.values()), ()))
    if any(len(cells) != count for cells in columns.values()):
        raise InputError("its columns have different lengths", where=source)
    return RawTable(columns, source, "row", np.arange(1, count + 1))


def frame_table(frame: Any, source: str) -> RawTable:
    """Take the columns of a pandas, polars or pyarrow frame, or of any other that narwhals knows."""
    if nw.dependencies.is_pandas_dataframe(native := nw.to_native(frame, pass_through=True)):
        frame = _of_pandas(native, source)
    try:
        table = nw.from_native(frame)
    except TypeError:
        raise InputError(
            f"{shown(frame)} is not a data frame", where=source,
            remedy="give one of pandas, polars, pyarrow or duckdb, a dict of columns or a list of dicts",
        ) from None  # fmt: skip
    except nw.exceptions.DuplicateError:
        raise InputError("a column is there twice", where=source) from None
    whole = table.collect() if isinstance(table, nw.LazyFrame) else table  # lazy: polars, duckdb
    columns = {str(name): cells for name, cells in whole.to_dict(as_series=False).items()}
    return of_history(columns_table(columns, source))


def _of_pandas(frame: Any, source: str) -> Any:
    """Return a pandas frame with a named index as columns; refuse columns of several levels or with one name."""
    names = frame.columns
    if names.nlevels > 1:
        raise InputError(
            "its columns have several levels",
            where=source, remedy="join them first: frame.columns = ['_'.join(name) for name in frame.columns]",
        )  # fmt: skip
    if not names.is_unique:
        raise InputError(f"column {shown(names[names.duplicated()][0])} is there twice", where=source)
    return frame if None in frame.index.names else frame.reset_index()


def of_history(table: RawTable) -> RawTable:
    """Return the last losses of a W&B history; other tables as they are."""
    if not is_history(list(table.columns)):
        return table
    columns, rows = last_rows(table.columns)
    note = f"a history of {len(table):,} steps: the last loss of {counted(len(rows), 'run')}"
    return RawTable(columns, table.source, table.unit, table.numbers[rows], (*table.notes, note))


def records_table(records: Sequence[Mapping[Any, Any]], source: str) -> RawTable:
    """Return a list of dicts as a table; a field that a row lacks is empty."""
    if not records or not all(isinstance(record, Mapping) for record in records):
        raise InputError(
            f"{shown(records)} is not a data frame", where=source, remedy="a list should hold a dict for each row"
        )
    names = dict.fromkeys(key for record in records for key in record)
    return columns_table({str(name): [record.get(name) for record in records] for name in names}, source)


def jsonl_table(text: str, source: str) -> RawTable:
    """Read JSON lines: one object for each row; a field that a row lacks is empty."""
    rows, numbers = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f"line {number} is not a JSON object: {shown(line)}", where=source)
        rows.append(row)
        numbers.append(number)
    if not rows:
        raise InputError("the file is empty", where=source, remedy="each line should be a JSON object")
    names = dict.fromkeys(key for row in rows for key in row)
    return RawTable({str(name): [row.get(name) for row in rows] for name in names}, source, "line", np.array(numbers))


def csv_table(text: str, source: str, delimiter: str | None = None) -> RawTable:
    """Read the text of a CSV file; ``source`` names it in errors. Cells are parted by commas, semicolons or tabs.

    Lines that start with # are comments.
    """
    delimiter = delimiter or _delimiter(text)
    header, rows, numbers = list[str](), list[list[str]](), list[int]()
    reader, first = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), 1
    try:
        for row in reader:
            number, first = first, reader.line_num + 1  # a quoted cell may span lines
            if not any(cell.strip() for cell in row) or row[0].lstrip().startswith("#"):
                continue
            if not header:
                header = [name.strip() for name in row]
                continue
            rows.append(row)
            numbers.append(number)
    except csv.Error as error:  # a cell beyond csv's limit
        raise InputError(f"not CSV: {error}", where=source) from None
    if len(rows) > TABLE_ROWS:
        check_rows(len(rows), source)
    _check_csv(header, rows, numbers, source)
    columns = {name: [row[k] for row in rows] for k, name in enumerate(header)}
    if is_chart(header):
        table = records_table(chart_records(columns, source), source)
        return replace(table, notes=("a W&B chart: sizes are from the names of runs",))
    return of_history(RawTable(columns, source, "line", np.array(numbers, dtype=np.int64)))


def _delimiter(text: str) -> str:
    """Return what parts the cells of the header, the first line that is no comment."""
    lines = (line for line in io.StringIO(text) if line.strip() and not line.lstrip().startswith("#"))
    header = re.sub(r'"[^"]*"', "", next(lines, ""))
    return max(",;\t", key=header.count)  # the first on a tie


def _check_csv(header: list[str], rows: Sequence[list[str]], numbers: Sequence[int], source: str) -> None:
    if not header:
        raise InputError("the file is empty", where=source, remedy="its first line should name the columns")
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InputError(f"column {shown(twice)} is there twice", where=source)
    for number, row in zip(numbers, rows, strict=True):
        if len(row) != len(header):
            raise InputError(f"line {number} has {len(row)} cells; the header has {len(header)}", where=source)


def _text(path: str | Path) -> str:
    try:
        content = read_bytes(path)
        content = gunzip(content, str(path)) if str(path).lower().endswith(".gz") else content
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError("no such file", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text", where=str(path)) from None
    except (OSError, EOFError) as error:
        raise InputError(f"cannot be read: {reason(error)}", where=str(path)) from None


def _parquet(path: str | Path) -> RawTable:
    if not Path(path).is_file():
        raise InputError("no such file", where=str(path))
    backends: tuple[tuple[Literal["pyarrow", "polars"], Callable[[str | Path], int]], ...]
    backends = ("pyarrow", _arrow_rows), ("polars", _polars_rows)
    for backend, rows in backends:
        try:
            check_rows(rows(path), str(path))  # a small file may hold millions of equal rows
            return frame_table(nw.read_parquet(str(path), backend=backend), str(path))
        except (ImportError, ModuleNotFoundError):
            continue
        except InputError:
            raise
        except Exception as error:  # each backend has its own errors for a file that is not Parquet
            raise InputError(f"not a Parquet file: {shown(str(error))}", where=str(path)) from None
    raise InputError(
        "reading Parquet needs pyarrow or polars", where=str(path), remedy="install one, or write CSV"
    )  # fmt: skip


def _arrow_rows(path: str | Path) -> int:
    from pyarrow import parquet

    return int(parquet.ParquetFile(str(path)).metadata.num_rows)


def _polars_rows(path: str | Path) -> int:
    import polars

    return int(polars.scan_parquet(str(path)).select(polars.len()).collect().item())
