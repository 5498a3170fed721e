"""What a run trains on: its documents, how they are divided into training and validation, and what identifies them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from loopscale.core.errors import InputError, shown
from loopscale.core.files import checksum
from loopscale.train.data import corpus
from loopscale.train.data.documents import ending, list_files, read_documents, read_rows
from loopscale.train.data.hub import streamed

LEAST_HELD_OUT = 1 << 14
"""Characters to hold out of a text so small that its documents' hashes hold out too little: a few sequences."""
_FILES = ("files", "tokenizer_file")
"""Parts of an identity that are names, sizes and times of files."""


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
            yield from read_rows(path, fields)

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
            values["corpus"] = corpus.identity()
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
            yield from streamed(self.dataset, self.text_field)
        elif not self.files:
            yield from (text for _, text in corpus.documents())
        for path in list_files(self.files):
            yield from read_documents(path, self.text_field)


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


def with_checksums(identity: dict[str, Any], source: DataSource) -> dict[str, Any]:
    """Return an identity with the checksums of its files, by which copies of them are known."""
    return {**identity, "checksums": {name: source.checksums(name) for name in _FILES if name in identity}}


def difference(old: dict[str, Any], new: dict[str, Any], source: DataSource) -> str:
    """Describe the first difference between what a store was made from and a source; empty if there is none.

    Files that were copied have other times: equal bytes under equal names are the same files.
    """
    for name in new:
        before, now = old.get(name), new[name]
        if before == now:
            continue
        if name in _FILES and _untimed(before) == _untimed(now):
            known = old.get("checksums", {}).get(name)
            if known is not None and known == source.checksums(name):
                continue
        if name == "files" and before:
            changed = [file[0] for file in now if file not in before] or [file[0] for file in before if file not in now]
            return f"the files have changed, first {changed[0] if changed else 'their order'}"
        return f"{name} was {shown(before)} and is {shown(now)}"
    return ""


def _untimed(stamps: Any) -> list[Any]:
    several = stamps if stamps and isinstance(stamps[0], list) else [stamps or []]
    return [stamp[:2] for stamp in several]
