"""The text of one file, document by document: plain text, JSONL and Parquet; what is wrong is said by file and row."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from loopscale.errors import InputError, nearest, shown

LONG = 1 << 18
"""A text file of up to this many bytes is one document; a longer one is cut into sections."""
SECTION = 1 << 14
"""The least length of a section, in characters: it ends with the paragraph, or else the line, that it is in."""

TEXT, ROWS, PARQUET = (".txt", ".text", ".md"), (".jsonl", ".ndjson"), (".parquet",)
KNOWN = (*TEXT, *ROWS, *PARQUET)


def ending(path: Path) -> str:
    """Return the file's ending, in lower case and without ``.gz``."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def read_documents(path: Path, field: str) -> Iterator[str]:
    """Yield the documents of a file; ``field`` names the text in files that have rows."""
    kind = ending(path)
    with _one_sentence(path):
        if kind in PARQUET:
            yield from _parquet(path, field)
        elif kind in ROWS:
            yield from _rows(path, field)
        else:
            yield from _sections(path)


def text_of(row: object, field: str, where: str) -> str:
    """Return the text of a row; a null is no text, anything else that is not text is refused."""
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: found {shown(row)}; each row should be an object with a field {field!r}")
    if field not in row:
        names = ", ".join(repr(name) for name in list(row)[:8]) or "none"
        raise InputError(f"{where}: there is no field {field!r}{nearest(field, map(str, row))}; its fields are {names}")
    text = row[field]
    if text is not None and not isinstance(text, str):
        raise InputError(f"{where}: field {field!r} is {shown(text)}; it should be text")
    return text or ""


def _sections(path: Path) -> Iterator[str]:
    blocks = _decoded(path)
    held = next(blocks, "")
    for block in blocks:
        held += block
        while len(held) > 2 * SECTION:
            end = _section_end(held)
            yield held[:end]
            held = held[end:]
    yield held


def _section_end(text: str) -> int:
    for mark in ("\n\n", "\n", " "):
        at = text.find(mark, SECTION, 2 * SECTION)
        if at >= 0:
            return at + len(mark)
    return SECTION


def _decoded(path: Path) -> Iterator[str]:
    """Yield a file's text in blocks of LONG bytes; bytes that are not text are refused by their place."""
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


def _rows(path: Path, field: str) -> Iterator[str]:
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}: row {number}"
            try:
                row = json.loads(line)
            except UnicodeDecodeError as error:
                raise InputError(f"{where}: not UTF-8 text at byte {error.start} of the row") from None
            except (ValueError, RecursionError) as error:
                reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
                raise InputError(f"{where}: not JSON: {reason}") from None
            yield text_of(row, field, where)


def _parquet(path: Path, field: str) -> Iterator[str]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs pyarrow; pip install pyarrow") from None
    try:
        with ParquetFile(path) as file:
            names = dict.fromkeys(file.schema_arrow.names)
            if field not in names:
                text_of(names, field, str(path))
            number = 0
            for batch in file.iter_batches(batch_size=1024, columns=[field]):
                for number, text in enumerate(batch.column(0).to_pylist(), start=number + 1):  # noqa: B020
                    yield text_of({field: text}, field, f"{path}: row {number}")
    except ArrowException as error:
        raise InputError(f"{path}: not usable as Parquet: {str(error).splitlines()[0]}") from None


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.name.lower().endswith(".gz") else path.open("rb")


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not usable as gzip: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
