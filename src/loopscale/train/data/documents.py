"""The documents of text files: files, folders and globs by name, and the texts or rows in each file."""

from __future__ import annotations

import codecs
import glob
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from loopscale.core.errors import InputError, MissingExtraError, missing_extra, nearest, shown

LONG = 1 << 18
"""A text file of up to this many bytes is one document; a longer one is divided into sections."""
SECTION = 1 << 14
"""Minimum length of a section, in characters: it ends at the next end of a paragraph, or else of a line."""
ROW_BYTES = 1 << 27
"""The longest line of JSONL: a line without an end, as a small gzip file may hold, would fill the memory."""

TEXT, ROWS, PARQUET = (".txt", ".text", ".md"), (".jsonl", ".ndjson"), (".parquet",)
KNOWN = (*TEXT, *ROWS, *PARQUET)


def list_files(names: tuple[str, ...]) -> list[Path]:
    """Return the files of names, folders and globs: each once, folders in sorted order."""
    files: dict[Path, None] = {}
    for name in names:
        files |= dict.fromkeys(_listed(name))
    return list(files)


def _listed(name: str) -> list[Path]:
    if not name.strip():
        raise InputError("files: one of the names is empty; name a file, a folder or a glob")
    path = Path(name).expanduser()
    if path.is_dir():
        return _of_folder(path)
    if path.exists():
        if path.stat().st_size == 0:
            raise InputError(f"{name}: the file is empty; give one with text")
        return [path]
    if not glob.has_magic(name):
        raise InputError(f"{name}: no such file or folder; check the name in [data] files")
    matched = sorted(Path(name) for name in glob.glob(str(path), recursive=True))  # noqa: PTH207
    files = [file for file in matched if file.is_file() and file.stat().st_size]
    if not files:
        raise InputError(f"{name}: no file matches, or all that do are empty; check the pattern in [data] files")
    return files


def _of_folder(folder: Path) -> list[Path]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and ending(path) in KNOWN]
    hidden = [any(part.startswith(".") for part in path.relative_to(folder).parts) for path in files]
    readable = [path for path, is_hidden in zip(files, hidden, strict=True) if path.stat().st_size and not is_hidden]
    if not readable:
        raise InputError(f"{folder}: the folder holds no text; files that end in {', '.join(KNOWN)} are read")
    return readable


def ending(path: Path) -> str:
    """Return the file's ending, in lower case and without ``.gz``."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def read_documents(path: Path, field: str) -> Iterator[str]:
    """Yield the documents of a file; ``field`` names the text in files that have rows."""
    with _readable(path):
        if ending(path) in (*ROWS, *PARQUET):
            for row, where in _rows(path, (field,)):
                yield text_of(row, field, where)
        else:
            yield from _sections(path)


def read_rows(path: Path, fields: tuple[str, str]) -> Iterator[tuple[tuple[Any, Any], str]]:
    """Yield two fields of every row of a file, and where the row is; text without rows is refused."""
    if ending(path) not in (*ROWS, *PARQUET):
        raise InputError(f"{path}: it has no rows with the fields {' and '.join(fields)}; give JSONL or Parquet")
    with _readable(path):
        for row, where in _rows(path, fields):
            if not isinstance(row, Mapping):
                raise InputError(f"{where}: found {shown(row)}; each row should be an object")
            for field in fields:
                _check_field(row, field, where)
            yield (row[fields[0]], row[fields[1]]), where


def text_of(row: object, field: str, where: str) -> str:
    """Return the text of a row; a null is empty text, anything else that is not text is refused."""
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: found {shown(row)}; each row should be an object with a field {field!r}")
    _check_field(row, field, where)
    text = row[field]
    if text is not None and not isinstance(text, str):
        raise InputError(f"{where}: field {field!r} is {shown(text)}; it should be text")
    return text or ""


def _check_field(row: Mapping[str, Any], field: str, where: str) -> None:
    if field not in row:
        names = ", ".join(repr(name) for name in list(row)[:8]) or "none"
        raise InputError(f"{where}: there is no field {field!r}{nearest(field, map(str, row))}; its fields are {names}")


def _rows(path: Path, fields: tuple[str, ...]) -> Iterator[tuple[object, str]]:
    """Yield every row of a file, and where it is; of a Parquet file only some fields are read."""
    return _parquet_rows(path, fields) if ending(path) in PARQUET else _json_rows(path)


def _json_rows(path: Path) -> Iterator[tuple[object, str]]:
    """Yield the value of every line of a JSONL file, and where it is."""
    with _opened(path) as file:
        for number, line in enumerate(iter(partial(file.readline, ROW_BYTES + 1), b""), start=1):
            if len(line) > ROW_BYTES:
                raise InputError(
                    f"{path}: row {number} has more than the {ROW_BYTES:,} bytes that one row may have; divide it"
                )
            if not line.strip():
                continue
            where = f"{path}: row {number}"
            try:
                row = json.loads(line)
            except UnicodeDecodeError as error:
                raise InputError(f"{where}: not UTF-8 text at byte {error.start} of the row") from None
            except (ValueError, RecursionError) as error:
                reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
                raise InputError(f"{where}: not JSON: {reason}; write one JSON object a line") from None
            yield row, where


def _parquet_rows(path: Path, fields: tuple[str, ...]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield some fields of every row of a Parquet file, and where the row is."""
    try:
        from pyarrow import ArrowException, types
        from pyarrow.parquet import ParquetFile, read_schema
    except ImportError:
        raise MissingExtraError(missing_extra("pyarrow", "train", f"{path}: reading Parquet")) from None
    try:
        schema = read_schema(path)
        for field in fields:
            _check_field(dict.fromkeys(schema.names), field, str(path))
        # As a dictionary, equal texts are in memory once: a small file may hold a long text a million times.
        texts = [field for field in fields if types.is_string(schema.field(field).type)]
        with ParquetFile(path, read_dictionary=texts) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1024, columns=list(fields)):
                for index in range(batch.num_rows):
                    number += 1
                    yield {field: batch[field][index].as_py() for field in fields}, f"{path}: row {number}"
    except ArrowException as error:
        raise InputError(f"{path}: not usable as Parquet: {str(error).splitlines()[0]}") from None


def _sections(path: Path) -> Iterator[str]:
    blocks = _decoded(path)
    text = next(blocks, "")
    for block in blocks:
        text += block
        while len(text) > 2 * SECTION:
            end = _section_end(text)
            yield text[:end]
            text = text[end:]
    yield text


def _section_end(text: str) -> int:
    for mark in ("\n\n", "\n", " "):
        at = text.find(mark, SECTION, 2 * SECTION)
        if at >= 0:
            return at + len(mark)
    return SECTION


def _decoded(path: Path) -> Iterator[str]:
    """Yield a file's text in blocks of LONG bytes; bytes that are not text are refused with their offset."""
    decoder, done = codecs.getincrementaldecoder("utf-8-sig")(), 0
    with _opened(path) as file:
        while block := file.read(LONG):
            zero = block.find(0)
            if zero >= 0:
                raise InputError(f"{path}: not text: byte {done + zero} is zero; give UTF-8 text, JSONL or Parquet")
            yield _decode(decoder, block, done, path)
            done += len(block)
    yield _decode(decoder, b"", done, path, final=True)


def _decode(decoder: codecs.IncrementalDecoder, block: bytes, done: int, path: Path, final: bool = False) -> str:
    waiting = len(decoder.getstate()[0])
    try:
        return decoder.decode(block, final)
    except UnicodeDecodeError as error:
        at = done - waiting + error.start
        raise InputError(f"{path}: not UTF-8 text at byte {at} (0x{error.object[error.start]:02x})") from None


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.name.lower().endswith(".gz") else path.open("rb")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Name the file, and what is wrong with it, where it cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not usable as gzip: {error}; compress it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
