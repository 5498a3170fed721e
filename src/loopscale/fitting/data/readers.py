"""Tables as they were written: CSV, TSV, JSON lines, Parquet and data frames, with the place of every row."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from loopscale.core.arrays import BoolArray, IntArray
from loopscale.core.errors import InputError, reason, shown
from loopscale.core.files import TABLE_CELLS, TABLE_ROWS, TEXT_BYTES, check_cells, check_rows, gunzip, read_bytes
from loopscale.core.quantities import counted
from loopscale.fitting.data.folders import is_run_folder, run_records
from loopscale.fitting.data.wandb import chart_records, is_chart, is_history, is_project, last_rows, project_records

Columns = dict[str, list[Any]]


@dataclass(frozen=True, eq=False)
class RawTable:
    """Cells by column, and the line or row of the source that each comes from."""

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
        "files of this kind cannot be read",
        where=str(path),
        remedy="give .csv, .tsv, .jsonl, .parquet, trainer_state.json or a folder of runs",
    )


def read_columns(path: str | Path) -> Columns:
    """Read the columns of a file that ``read_table`` reads."""
    return read_table(path).columns


def columns_table(columns: Columns, source: str) -> RawTable:
    """Return columns that are in memory already as a table; rows count from 1."""
    count = len(next(iter(columns.values()), ()))
    if any(len(cells) != count for cells in columns.values()):
        raise InputError("its columns have different lengths", where=source)
    return RawTable(columns, source, "row", np.arange(1, count + 1))


def frame_table(frame: Any, source: str) -> RawTable:
    """Take the columns of a pandas, polars or pyarrow frame, or of any other that narwhals supports."""
    import narwhals as nw  # which files need not

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
    check_cells(len({key for row in rows for key in row}) * len(rows), source)
    return replace(records_table(rows, source), unit="line", numbers=np.array(numbers))


def csv_table(text: str, source: str, delimiter: str | None = None) -> RawTable:
    """Read the text of a CSV file; ``source`` names it in errors. Cells are parted by commas, semicolons or tabs.

    Lines that start with # are comments.
    """
    delimiter = delimiter or _delimiter(text)
    header, rows, numbers = list[str](), list[list[str]](), list[int]()
    reader, first, cells = csv.reader(_lines(text), delimiter=delimiter), 1, 0
    try:
        for row in reader:
            check_cells(cells := cells + len(row), source)
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


def _lines(text: str) -> Iterator[str]:
    """Yield the lines with their ends; io.StringIO would hold the whole text again, at four bytes a character."""
    return (match[0] for match in re.finditer(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text))


def _delimiter(text: str) -> str:
    """Return what parts the cells of the header, the first line that is no comment."""
    lines = (line for line in _lines(text) if line.strip() and not line.lstrip().startswith("#"))
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
    import narwhals as nw

    backends: tuple[tuple[Literal["pyarrow", "polars"], Callable[[str], tuple[int, int, int]]], ...]
    backends = ("pyarrow", _arrow_size), ("polars", _polars_size)
    for backend, size in backends:
        try:
            rows, cells, characters = size(str(path))  # equal rows and long equal texts take no room in a file
            check_rows(rows, str(path))
            check_cells(cells, str(path))
            if characters > TEXT_BYTES:
                raise InputError(
                    f"its texts unpack to more than the {TEXT_BYTES:,} bytes that are read", where=str(path)
                )
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


def _arrow_size(path: str) -> tuple[int, int, int]:
    """Return the rows and cells of a Parquet file and the bytes of its texts once unpacked, without unpacking them."""
    import pyarrow as pa
    from pyarrow import compute, parquet

    file = parquet.ParquetFile(path)
    rows = file.metadata.num_rows
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    cells = sum(group.column(index).num_values for group in groups for index in range(group.num_columns))
    if rows > TABLE_ROWS or cells > TABLE_CELLS:
        return rows, cells, 0
    # The texts inside lists and records are bounded by the longest that there could be.
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    nested = [part for part in columns if "." in part.path_in_schema and part.physical_type == "BYTE_ARRAY"]
    characters = sum(part.num_values * part.total_uncompressed_size for part in nested)
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    types = {field.name: field.type for field in file.schema_arrow}
    plain = {name: kind.value_type if pa.types.is_dictionary(kind) else kind for name, kind in types.items()}
    texts = [name for name, kind in plain.items() if any(is_kind(kind) for is_kind in kinds)]
    for column in parquet.read_table(path, columns=texts, read_dictionary=texts).columns:
        for chunk in column.chunks:
            lengths = compute.binary_length(chunk.dictionary).cast(pa.int64())
            characters += compute.sum(lengths.take(chunk.indices)).as_py() or 0
    return rows, cells, characters


def _polars_size(path: str) -> tuple[int, int, int]:
    import polars

    frame = polars.scan_parquet(path)
    schema = frame.collect_schema()
    rows = int(frame.select(polars.len()).collect().item())
    texts = [name for name, kind in schema.items() if kind in (polars.String, polars.Categorical)]
    if not texts or rows > TABLE_ROWS:
        return rows, rows * len(schema), 0
    lengths = frame.select(polars.col(texts).cast(polars.String).str.len_bytes().cast(polars.Int64).sum()).collect(
        engine="streaming"
    )
    return rows, rows * len(schema), sum(lengths.row(0))
