"""Checkpoints of a run in progress: distributed, atomic, verified, and free of pickles.

A checkpoint is a folder ``step-N`` with safetensors shards written by torch's distributed checkpoint and a manifest
that holds the checksum of each. The folder is renamed to ``step-N`` only when all files are on disk, so a folder
of that name is a complete checkpoint.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, TypeVar, cast

import torch.distributed as dist
from pydantic import Field
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from loopscale.core.errors import InputError, LoopscaleError, StorageError
from loopscale.core.files import checksum, make_folder, read_json, remove_folder, replace_folder, write_json
from loopscale.core.records import file_of
from loopscale.core.schemas import parse
from loopscale.train.identity import ADDED

KIND, SCHEMA = "training checkpoint", 1
T = TypeVar("T")
_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Manifest:
    """The description stored with a checkpoint."""

    step: int
    identity: dict[str, Any]
    """What a run must share with the checkpoint to resume from it: the model's shape, the data, the seed."""
    state: dict[str, Any]
    """Plain values of the run beside its tensors."""


ManifestFile = file_of(
    Manifest,
    KIND,
    SCHEMA,
    overrides={"step": Annotated[int, Field(ge=0)]},
    files=(dict[str, str], Field(description="SHA-256 by name.")),
)
"""manifest.json: what a checkpoint holds, and the checksum of each of its files."""


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, keep: int, *, background: bool = False) -> None:
        self.folder, self.keep = folder, keep
        self.background = background
        """Write in a thread while training continues."""
        self._writing: Thread | None = None
        self._failed: BaseException | None = None
        self._group: dist.ProcessGroup | None = None

    def steps(self) -> list[int]:
        """Return the steps that have a complete checkpoint, the latest first."""
        if not self.folder.is_dir():
            return []
        matches = [_NAME.fullmatch(entry.name) for entry in self.folder.iterdir() if entry.is_dir()]
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def path(self, step: int) -> Path:
        """Return the folder of a step."""
        return self.folder / f"step-{step}"

    def save(self, manifest: Manifest, tensors: dict[str, Tensor], protect: int | None = None) -> Path:
        """Write a checkpoint, then remove the oldest beyond ``keep``, except step ``protect``; every rank calls this.

        In the background, this returns as soon as the tensors are copied; ``wait`` reports what went wrong.
        """
        self.wait()
        if not self.background:
            self._write(manifest, tensors, protect)
            return self.path(manifest.step)
        if _distributed() and self._group is None:
            # The training step communicates at the same time: the writer needs its own group.
            self._group = dist.new_group(backend="gloo")
        # Copies in the memory of the host, which later steps cannot change.
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}

        def write() -> None:
            try:
                self._write(manifest, copies, protect)
            except BaseException as error:  # DCP's own error is no Exception
                self._failed = error

        self._writing = Thread(target=write)
        self._writing.start()
        return self.path(manifest.step)

    def wait(self) -> None:
        """Wait for the checkpoint that is being written; a failure to write it is raised here."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error

    def _write(self, manifest: Manifest, tensors: dict[str, Tensor], protect: int | None) -> None:
        target, temporary = self.path(manifest.step), self.folder / f".step-{manifest.step}.partial"
        with on_disk(target):
            if _rank() == 0:
                make_folder(self.folder)
                for leftover in self.folder.glob(".step-*"):  # of a process that was killed
                    shutil.rmtree(leftover)
                temporary.mkdir()
            self._barrier()
            writer = HuggingFaceStorageWriter(str(temporary), save_distributed=True)
            try:
                with _alone():
                    save(tensors, storage_writer=writer, no_dist=not _distributed(), process_group=self._group)
            except CheckpointException as error:  # it wraps Ctrl-C too
                if any(isinstance(failure, KeyboardInterrupt) for failure, _ in error.failures.values()):
                    raise KeyboardInterrupt from error
                raise
            checksums = self._checksums(temporary)
            if _rank() == 0:
                self._finish(manifest, checksums, temporary, target, protect)
            self._barrier()

    def _checksums(self, folder: Path) -> dict[str, str]:
        """Return the checksum of every file; each rank computes its share of them."""
        files = sorted(folder.iterdir())
        if not _distributed():
            return {file.name: checksum(file) for file in files}
        shares: list[Any] = [None] * dist.get_world_size()
        own = {file.name: checksum(file) for file in files[_rank() :: len(shares)]}
        dist.all_gather_object(shares, own, group=self._group)
        return {name: value for share in shares for name, value in share.items()}

    def _finish(
        self, manifest: Manifest, checksums: dict[str, str], temporary: Path, target: Path, protect: int | None
    ) -> None:
        write_json(
            temporary / "manifest.json",
            {"kind": KIND, "schema": SCHEMA, **vars(manifest), "files": checksums},
        )
        replace_folder(temporary, target)
        unprotected = [step for step in self.steps() if step != protect]
        for step in unprotected[self.keep :]:
            remove_folder(self.path(step))

    def load(
        self,
        identity: dict[str, Any],
        tensors: dict[str, Tensor],
        *,
        at: int | None = None,
        latest: int | None = None,
    ) -> Manifest | None:
        """Read the latest complete checkpoint into ``tensors``, or that of step ``at``; None when there is none.

        ``latest`` excludes later steps. A damaged checkpoint is skipped with a warning; one of another model, data set,
        seed or schedule is refused.
        """
        manifest = _from_first(lambda: self._complete(at, latest))
        if manifest is None:
            return None
        path = self.path(manifest.step)
        _check_identity(path, manifest.identity, identity)
        reader = HuggingFaceStorageReader(str(path))
        try:
            with _alone():
                load(tensors, storage_reader=reader, no_dist=not _distributed())
        except (Exception, CheckpointException) as error:  # the checksums were right, so the tensors are others
            raise InputError(
                f"{path}: its tensors do not match this model; choose another folder for this run"
            ) from error
        return manifest

    def _complete(self, at: int | None, latest: int | None) -> Manifest | None:
        """Return the manifest of the latest complete checkpoint, or that of step ``at``."""
        candidates = [step for step in self.steps() if latest is None or step <= latest]
        for step in candidates if at is None else [at]:
            try:
                return verify(self.path(step))
            except InputError as error:
                if at is not None:
                    raise
                warnings.warn(f"{error}; trying the one before", stacklevel=3)
        return None

    def _barrier(self) -> None:
        if _distributed():
            dist.barrier(group=self._group)


def verify(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint after comparing every file with its checksum."""
    path = folder / "manifest.json"
    stored = parse(ManifestFile, read_json(path), str(path))
    manifest = Manifest(stored.step, stored.identity, stored.state)
    for name, expected in stored.files.items():
        file = folder / name
        if Path(name).name != name or not file.is_file():
            raise InputError(f"{file}: the checkpoint lacks this file")
        if checksum(file) != expected:
            raise InputError(f"{file}: the checkpoint is damaged: the checksum differs from the one in manifest.json")
    return manifest


def _check_identity(path: Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    stored = ADDED | stored
    for key, value in wanted.items():
        if stored.get(key) != value:
            raise InputError(
                f"{path}: this checkpoint is of another run: its {key} is {stored.get(key)!r}, and this run's is "
                f"{value!r}; choose another folder for this run, or remove that one"
            )


@contextmanager
def on_disk(target: Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into one sentence; existing files are kept."""
    try:
        yield
    except LoopscaleError:
        raise
    except BaseException as error:  # DCP's own error is no Exception
        cause = disk_error(error)
        if cause is None:
            raise
        latest = Checkpoints(target.parent, 1).steps()
        newest = f"the checkpoint of step {latest[0]} is complete" if latest else "no checkpoint was written yet"
        raise StorageError(f"{target}: cannot be written: {cause}; {newest}; free some space and start again") from None


def disk_error(error: BaseException | None) -> str | None:
    """Return the system's message for a failed write, wherever it is in the chain of causes."""
    seen: list[BaseException] = []
    pending = [error] if error is not None else []
    while pending:
        current = pending.pop()
        seen.append(current)
        if isinstance(current, OSError) and current.errno is not None:
            return os.strerror(current.errno)
        text = str(current)
        if isinstance(current, OSError) and " requested and " in text:  # NumPy's, for a write that ended early
            return os.strerror(errno.ENOSPC)
        for code in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT):
            if os.strerror(code) in text:
                return os.strerror(code)
        causes = [current.__cause__, current.__context__, *getattr(current, "failures", {}).values()]
        flat = [cause[0] if isinstance(cause, tuple) else cause for cause in causes]
        pending += [cause for cause in flat if isinstance(cause, BaseException) and cause not in seen]
    return None


@contextmanager
def _alone() -> Iterator[None]:
    """Suppress DCP's warning about a single process, which is intended here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _rank() -> int:
    return dist.get_rank() if _distributed() else 0


def _from_first(find: Callable[[], T]) -> T:
    """Return the result of rank 0 on all ranks: a checkpoint is verified once, not by every rank."""
    if not _distributed():
        return find()
    results: list[Any] = [None]
    if _rank() == 0:
        try:
            results = [find()]
        except InputError as error:
            results = [error]
    dist.broadcast_object_list(results)
    if isinstance(results[0], InputError):
        raise results[0]
    return cast(T, results[0])
