"""Where text comes from, and on which side of the split each document falls."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from loopscale.errors import InputError, shown
from loopscale.train import corpus
from loopscale.train.hub import hub_answers
from loopscale.train.readers import KNOWN, ending, read_documents, text_of


@dataclass(frozen=True)
class DataSource:
    """The text to train on, and how it becomes tokens."""

    files: tuple[str, ...] = ()
    """Text (.txt, .text, .md), JSONL (.jsonl, .ndjson), each also with .gz, Parquet, or folders and globs of them.
    Without files and dataset: the built-in corpus."""
    dataset: str | None = None
    """A `datasets` name or folder, streamed: ``name``, ``name:config`` or ``name:config:split`` (by default train)."""
    text_field: str = "text"
    """The field that holds the text, in files and datasets that have rows."""
    tokenizer: str = "bytes"
    """``bytes``, ``train:1024`` (a BPE of that vocabulary, trained on the training documents), or the folder or name of
    a Hugging Face tokenizer."""
    validation: float = 0.01
    """The share of documents held out. A document's text alone decides, so equal documents are on the same side."""

    def __post_init__(self) -> None:
        # Settings files give lists, and people a single name.
        object.__setattr__(self, "files", (self.files,) if isinstance(self.files, str) else tuple(self.files))
        if self.files and self.dataset:
            raise InputError(f"files and the dataset {shown(self.dataset)} are both given; give one of them")
        if not 0 <= self.validation < 1:
            raise InputError(f"validation: {shown(self.validation)} is not a share from 0 to below 1")

    def documents(self) -> Iterator[str]:
        """Yield the text of every document that has any, in a fixed order."""
        for text in self._every():
            if text.strip():
                yield _encodable(text)

    def held_out(self, text: str) -> bool:
        """Tell whether a document belongs to validation: by a hash of its text, whatever surrounds it."""
        mark = blake2b(text.strip().encode(), digest_size=8).digest()
        return int.from_bytes(mark, "big") < self.validation * 2**64

    def identity(self) -> dict[str, Any]:
        """Return what the tokens depend on: these settings, and the name, size and time of every file."""
        found: dict[str, Any] = asdict(self) | {"files": [_stamp(path) for path in list_files(self.files)]}
        if not self.files and self.dataset is None:
            found["corpus"] = corpus.identity()
        own = Path(self.tokenizer)
        own = own / "tokenizer.json" if own.is_dir() else own
        if own.is_file():
            found["tokenizer_file"] = _stamp(own)
        return found

    def size(self) -> int | None:
        """Return how many bytes there are to read, or None where only reading can tell."""
        paths = list_files(self.files)
        plain = paths and all(ending(path) == path.suffix.lower() != ".parquet" for path in paths)
        return sum(path.stat().st_size for path in paths) if plain else None

    def _every(self) -> Iterator[str]:
        if self.dataset is not None:
            yield from _streamed(self.dataset, self.text_field)
        elif not self.files:
            yield from (text for _, text in corpus.documents())
        for path in list_files(self.files):
            yield from read_documents(path, self.text_field)


def list_files(names: tuple[str, ...]) -> list[Path]:
    """Return the files that names, folders and globs stand for: each once, folders in sorted order."""
    found: dict[Path, None] = {}
    for name in names:
        found |= dict.fromkeys(_listed(name))
    return list(found)


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
        raise InputError(f"{name}: no such file or folder")
    matched = sorted(Path(each) for each in glob.glob(str(path), recursive=True))  # noqa: PTH207
    files = [each for each in matched if each.is_file() and each.stat().st_size]
    if not files:
        raise InputError(f"{name}: no file matches, or all that do are empty")
    return files


def _of_folder(folder: Path) -> list[Path]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and ending(path) in KNOWN]
    kept = [path for path in files if path.stat().st_size and not _hidden(path.relative_to(folder))]
    if not kept:
        raise InputError(f"{folder}: the folder holds no text; files that end in {', '.join(KNOWN)} are read")
    return kept


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
        raise InputError(f"dataset {name}: needs the package 'datasets'; pip install 'loopscale[train]'") from None
    path, config, split = (*name.split(":"), "", "")[:3]
    if not Path(path).exists() and not hub_answers():
        raise InputError(
            f"dataset {name}: no such folder, and the hub cannot be reached; "
            "check the connection, or give files on this machine"
        )
    rows: Iterable[object] = load_dataset(path, config or None, split=split or "train", streaming=True)
    return rows
