"""Rows of a file or of any data frame, as columns of plain values."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import narwhals as nw

from loopscale.errors import InputError, shown

Columns = dict[str, list[Any]]


def read_columns(path: str | Path) -> Columns:
    """Read a ``.csv``, ``.csv.gz``, ``.tsv`` or ``.parquet`` file."""
    name = str(path).lower()
    if name.endswith((".parquet", ".pq")):
        return _parquet(path)
    if name.endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz")):
        return csv_columns(_text(path), str(path), "\t" if ".tsv" in name else ",")
    raise InputError(f"{path}: this kind of file is not read; give .csv, .csv.gz, .tsv or .parquet")


def frame_columns(frame: Any, source: str) -> Columns:
    """Take the columns of a pandas, polars or pyarrow frame, or of any other that narwhals knows."""
    try:
        table = nw.from_native(frame)
    except TypeError:
        raise InputError(
            f"{source}: {shown(frame)} is not a data frame; give one of pandas, polars or pyarrow"
        ) from None
    whole = table.collect() if isinstance(table, nw.LazyFrame) else table
    return {str(name): whole[name].to_list() for name in whole.columns}


def csv_columns(text: str, source: str, delimiter: str = ",") -> Columns:
    """Read the text of a CSV file; ``source`` names it in errors."""
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:  # a cell beyond csv's limit
        raise InputError(f"{source}: not CSV: {error}") from None
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if not rows:
        raise InputError(f"{source}: the file is empty; its first line should name the columns")
    names = [name.strip() for name in rows[0]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{source}: column {shown(twice)} is there twice")
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(names):
            raise InputError(f"{source}: row {number} has {len(row)} cells; the header has {len(names)}")
    return {name: [row[k] for row in rows[1:]] for k, name in enumerate(names)}


def _text(path: str | Path) -> str:
    try:
        content = Path(path).read_bytes()
        content = gzip.decompress(content) if str(path).lower().endswith(".gz") else content
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
    except (OSError, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _parquet(path: str | Path) -> Columns:
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    for backend in ("pyarrow", "polars", "pandas"):
        try:
            return frame_columns(nw.read_parquet(str(path), backend=backend), str(path))
        except (ImportError, ModuleNotFoundError):
            continue
        except Exception as error:  # each backend has its own errors for a file that is not Parquet
            raise InputError(f"{path}: not a Parquet file: {shown(str(error))}") from None
    raise InputError(f"{path}: reading Parquet needs pyarrow, polars or pandas; install one, or write CSV")
