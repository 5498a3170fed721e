"""Writes shards of tokens: by one process at a time, and completely or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import numpy as np
from filelock import FileLock

from loopscale.core.errors import InputError, LoopscaleError, StorageError
from loopscale.core.files import make_lasting_folder, read_json, replace_folder, write_json
from loopscale.train.data.token_store import Shard
from loopscale.train.data.tokenizer import Ids

SHARD_TOKENS = 1 << 27
PROGRESS = "progress.json"
"""How far a preparation has come, for one that resumes it."""


class SplitWriter:
    """Appends the documents of one split to its shards; starts a new one when the last is full."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype[Any]) -> None:
        self.folder, self.split, self.dtype = folder, split, dtype
        self.documents = 0
        self.shards: list[Shard] = []
        self._file: IO[bytes] | None = None

    def append(self, ids: Ids, documents: int) -> None:
        """Write documents that follow each other."""
        self.documents += documents
        ids = ids.astype(self.dtype, copy=False)
        while ids.size:
            if self._file is None:
                self._start()
            room = SHARD_TOKENS - self._tokens
            self._write(ids[:room])
            ids = ids[room:]
            if self._tokens == SHARD_TOKENS:
                self.finish()

    def finish(self) -> None:
        """Close the shard that is being written, with all of it on the disk."""
        if self._file is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self.shards.append(Shard(Path(self._file.name).name, self._tokens, self._hash.hexdigest()))
        self._file = None

    def state(self) -> dict[str, Any]:
        """Bring everything to the disk, and return what ``restore`` needs to continue from here."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
        return {**self.summary(), "open": 0 if self._file is None else self._tokens}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken: what was written after it is cut off."""
        self.documents, self.shards = state["documents"], [Shard(**shard) for shard in state["shards"]]
        if not state["open"]:
            return
        path = self.folder / f"{self.split}-{len(self.shards):05d}.bin"
        self._file, self._tokens = path.open("r+b"), state["open"]
        self._file.truncate(self._tokens * self.dtype.itemsize)
        self._hash = sha256(self._file.read())

    def summary(self) -> dict[str, Any]:
        """Return the split's entry of the index."""
        return {"documents": self.documents, "shards": [asdict(shard) for shard in self.shards]}

    def _start(self) -> None:
        self._file = (self.folder / f"{self.split}-{len(self.shards):05d}.bin").open("wb")
        self._tokens, self._hash = 0, sha256()

    def _write(self, ids: Ids) -> None:
        assert self._file is not None
        data = ids.data.cast("B")
        self._file.write(data)
        self._hash.update(data)
        self._tokens += ids.size


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process at a time write ``folder``; the lock of a killed process is released."""
    with _writable(folder):
        make_lasting_folder(folder.parent)
        lock = FileLock(folder.parent / f".{folder.name}.lock")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def atomic_folder(folder: Path, identity: dict[str, Any]) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``folder`` when the block succeeds, and removed when it fails.

    What a killed process left for the same ``identity`` is still in it, so that the block can resume.
    """
    partial = folder.parent / f".{folder.name}.partial"
    mark = partial / "identity.json"
    with _writable(folder):
        if not mark.is_file() or read_or_none(mark) != json.loads(json.dumps(identity)):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            write_json(mark, identity)
        try:
            yield partial
            for name in (mark.name, PROGRESS):
                (partial / name).unlink(missing_ok=True)
            replace_folder(partial, folder)
        except Exception:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def read_or_none(path: Path) -> Any:
    """Return the content of a JSON file, or None where it is damaged."""
    try:
        return read_json(path)
    except InputError:
        return None


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except LoopscaleError:
        raise
    except OSError as error:
        raise StorageError(
            f"{folder}: the tokens cannot be written: {error.strerror or error}; free some space, or "
            "name another [data] folder"
        ) from None
