"""Copies of finished points in a folder or object store: ``[sweep] objects``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loopscale.core.errors import StorageError, require
from loopscale.sweep.store import run_folder


def copy_point(point: Path, objects: str) -> None:
    """Copy a finished point, without its checkpoints, and its run's metrics to a folder or URL."""
    files = [point.parent / "metrics.jsonl", *sorted(point.rglob("*"))]
    with _remote(objects) as (system, base):
        for file in files:
            inner = file.relative_to(point.parent.parent)
            if file.is_file() and "checkpoints" not in inner.parts and not file.name.startswith("."):
                target = f"{base}/{inner.as_posix()}"
                system.makedirs(target.rpartition("/")[0], exist_ok=True)
                system.put_file(str(file), target)


def fetch_points(results: Path, objects: str) -> int:
    """Copy summaries and configurations that the runs' folders lack from a folder or URL; return how many came."""
    count = 0
    with _remote(objects) as (system, base):
        for path in system.find(base) if system.exists(base) else ():
            key, point, name, *deeper = (*path[len(base) :].strip("/").split("/"), "", "", "")[:4]
            target = run_folder(results, key) / point / name
            if name in ("summary.json", "run.json") and not any(deeper) and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                system.get_file(path, str(target))
                count += 1
    return count


@contextmanager
def _remote(objects: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of a folder or URL and the path in it; what goes wrong there is one sentence."""
    core = require("fsspec.core", "train", "[sweep] objects")
    try:
        system, base = core.url_to_fs(objects)
        yield system, base.rstrip("/")
    except Exception as error:  # every file system has its own errors
        reason = " ".join(str(error).split()) or type(error).__name__
        raise StorageError(
            f"{objects}: cannot be used for the objects of the sweep: {reason[:300]}; check the address and your access"
        ) from None
