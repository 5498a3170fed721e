"""Checkpoints of a run in progress: distributed, atomic, verified, and free of pickles.

A checkpoint is a folder ``step-N`` with safetensors shards written by torch's distributed checkpoint and a manifest
that holds the checksum of each. It gets its name only when all is on disk, so a name means a whole checkpoint.
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
from typing import Any, TypeVar, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from loopscale.errors import InputError
from loopscale.files import checksum, read_json, versioned, write_json

KIND, SCHEMA = "training checkpoint", 1
T = TypeVar("T")
_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    step: int
    identity: dict[str, Any]
    """What a run must share with the checkpoint to go on from it: the model's shape, the data, the seed."""
    state: dict[str, Any]
    """Plain values of the run beside its tensors."""


class Checkpoints:
    """The checkpoints of one run's folder."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """Return the steps that have a whole checkpoint, the latest first."""
        if not self.folder.is_dir():
            return []
        found = [_NAME.fullmatch(each.name) for each in self.folder.iterdir() if each.is_dir()]
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def path(self, step: int) -> Path:
        """Return the folder of a step."""
        return self.folder / f"step-{step}"

    def save(self, manifest: Manifest, tensors: dict[str, Tensor]) -> Path:
        """Write a checkpoint, then drop the oldest beyond ``keep``; every process calls this."""
        target, temporary = self.path(manifest.step), self.folder / f".step-{manifest.step}.partial"
        with on_disk(target):
            if _rank() == 0:
                _remove(temporary)
                temporary.mkdir(parents=True)
            _barrier()
            writer = HuggingFaceStorageWriter(str(temporary), save_distributed=True)
            with _alone():
                save(tensors, storage_writer=writer, no_dist=not _distributed())
            if _rank() == 0:
                self._finish(manifest, temporary, target)
            _barrier()
        return target

    def _finish(self, manifest: Manifest, temporary: Path, target: Path) -> None:
        sums = {each.name: checksum(each) for each in sorted(temporary.iterdir())}
        write_json(
            temporary / "manifest.json",
            {
                "kind": KIND,
                "schema": SCHEMA,
                "step": manifest.step,
                "identity": manifest.identity,
                "state": manifest.state,
                "files": sums,
            },
        )
        _remove(target)
        temporary.rename(target)
        _sync(self.folder)
        for step in self.steps()[self.keep :]:
            _remove(self.path(step))

    def load(
        self,
        identity: dict[str, Any],
        tensors: dict[str, Tensor],
        *,
        at: int | None = None,
        latest: int | None = None,
    ) -> Manifest | None:
        """Read the latest checkpoint that is whole into ``tensors``, or that of step ``at``; None when there is none.

        ``latest`` leaves out those of later steps.

        A damaged one is passed over with a warning; one of another model, data set or seed is refused.
        """
        manifest = _from_first(lambda: self._whole(at, latest))
        if manifest is None:
            return None
        path = self.path(manifest.step)
        _check_identity(path, manifest.identity, identity)
        reader = HuggingFaceStorageReader(str(path))
        try:
            with _alone():
                load(tensors, storage_reader=reader, no_dist=not _distributed())
        except (Exception, CheckpointException) as error:  # the checksums were right, so the tensors are others
            raise InputError(f"{path}: it holds other tensors than this model's") from error
        return manifest

    def _whole(self, at: int | None, latest: int | None) -> Manifest | None:
        """Return the manifest of the latest checkpoint that is whole, or that of step ``at``."""
        known = [step for step in self.steps() if latest is None or step <= latest]
        for step in known if at is None else [at]:
            try:
                return verify(self.path(step))
            except InputError as error:
                if at is not None:
                    raise
                warnings.warn(f"{error}; trying the one before", stacklevel=3)
        return None


def verify(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint whose every file is as it was written."""
    where = folder / "manifest.json"
    fields = versioned(read_json(where), str(where), KIND, SCHEMA)
    manifest = Manifest(fields.take("step", int), fields.take("identity", dict), fields.take("state", dict))
    files = fields.take("files", dict)
    fields.done()
    for name, expected in files.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise InputError(f"{path}: the checkpoint lacks this file")
        if checksum(path) != expected:
            raise InputError(f"{path}: the checkpoint is damaged: its contents are not what was written")
    return manifest


def _check_identity(where: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for key, value in wanted.items():
        if found.get(key) != value:
            raise InputError(
                f"{where}: this checkpoint is of another run: its {key} is {found.get(key)!r}, and this run's is "
                f"{value!r}; choose another folder for this run, or remove that one"
            )


@contextmanager
def on_disk(target: Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into one sentence; what was there before stays."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:  # DCP's own error is no Exception
        cause = disk_error(error)
        if cause is None:
            raise
        latest = Checkpoints(target.parent, 1).steps()
        kept = f"the checkpoint of step {latest[0]} is whole" if latest else "no checkpoint was written yet"
        raise InputError(f"{target}: cannot be written: {cause}; {kept}; make room and start again") from None


def disk_error(error: BaseException | None) -> str | None:
    """Return the system's words for a failed write, wherever in the chain of causes it stands."""
    seen: list[BaseException] = []
    pending = [error] if error is not None else []
    while pending:
        each = pending.pop()
        seen.append(each)
        if isinstance(each, OSError) and each.errno is not None:
            return os.strerror(each.errno)
        text = str(each)
        for code in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT):
            if os.strerror(code) in text:
                return os.strerror(code)
        found = [each.__cause__, each.__context__, *getattr(each, "failures", {}).values()]
        flat = [one[0] if isinstance(one, tuple) else one for one in found]
        pending += [one for one in flat if isinstance(one, BaseException) and one not in seen]
    return None


@contextmanager
def _alone() -> Iterator[None]:
    """Keep DCP from warning that one process is alone: that is what is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _sync(folder: Path) -> None:
    """Make a rename last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _rank() -> int:
    return dist.get_rank() if _distributed() else 0


def _from_first(find: Callable[[], T]) -> T:
    """Return what the first process finds, to all of them: a checkpoint is read and checked once, not by everyone."""
    if not _distributed():
        return find()
    found: list[Any] = [None]
    if _rank() == 0:
        try:
            found = [find()]
        except InputError as error:
            found = [error]
    dist.broadcast_object_list(found)
    if isinstance(found[0], InputError):
        raise found[0]
    return cast(T, found[0])


def _barrier() -> None:
    if _distributed():
        dist.barrier()
