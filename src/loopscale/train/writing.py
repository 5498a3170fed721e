"""How shards are written: in one stream, with their checksums, beside the folder that they will become."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import numpy as np
from filelock import FileLock

from loopscale.errors import InputError
from loopscale.train.tokens import Ids

SHARD_TOKENS = 1 << 27


@dataclass(frozen=True)
class Shard:
    """One file of ids, and what must be in it."""

    file: str
    tokens: int
    sha256: str


class SplitWriter:
    """Appends the documents of one split to its shards, a new one whenever the last is full."""

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

    def summary(self) -> dict[str, Any]:
        """Return what the index says of the split."""
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
    """Let one process at a time write ``folder``; a killed one holds nobody up."""
    with _writable(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f".{folder.name}.lock")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def whole_or_not_at_all(folder: Path) -> Iterator[Path]:
    """Give a folder to write in, which becomes ``folder`` when the block ends well and is gone when it does not."""
    partial = folder.parent / f".{folder.name}.partial"
    with _writable(folder):
        shutil.rmtree(partial, ignore_errors=True)  # what a killed process left
        try:
            partial.mkdir()
            yield partial
            partial.replace(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder}: the tokens cannot be written: {error.strerror or error}") from None
