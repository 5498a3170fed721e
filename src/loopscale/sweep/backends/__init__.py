"""Where a sweep runs, by its word: local, ray or slurm."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import TYPE_CHECKING

from loopscale.errors import InputError

if TYPE_CHECKING:
    from loopscale.sweep.spec import Sweep
    from loopscale.sweep.supervise import Launcher


def usable_cores() -> list[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def check_cores(cores: Sequence[int]) -> None:
    """Refuse cores that this process may not use."""
    usable = usable_cores()
    for core in cores:
        if core not in usable:
            raise InputError(f"--cores: core {core} is not one of {', '.join(map(str, usable))}")


THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def open_nursery() -> ForkServerContext:
    """Start the process, if it is not there yet, and go on while it loads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["loopscale.sweep.worker"])
    with _one_thread():
        forkserver.ensure_running()
    return context


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that are started in the block compute with one thread; libraries look at this when they load."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@dataclass(frozen=True)
class Place:
    """What was asked for; each word has settings of its own."""

    on: str = "local"
    workers: int | None = None
    cores: Sequence[int] | None = None
    ray_address: str | None = None
    slurm: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for given, name, word in (
            (self.cores is not None, "--cores", "local"),
            (self.ray_address is not None, "--ray-address", "ray"),
            (bool(self.slurm), "--slurm", "slurm"),
        ):
            if given and self.on != word:
                raise InputError(f"{name} goes with --on {word}, and this is --on {self.on}")
        check_cores(self.cores or ())
        if self.on == "slurm" and self.workers is None:
            raise InputError("--on slurm: say how many jobs there may be at once with --workers")

    def warm(self) -> None:
        """Begin what takes time and needs no sweep: local workers' torch loads while the file is read and checked."""
        if self.on == "local":
            open_nursery()

    def launcher(self, sweep: Sweep) -> tuple[Launcher, int]:
        """Return what starts workers there, and how many there are to be."""
        if self.on == "ray":
            from loopscale.sweep.backends.ray import Ray

            cluster = Ray(self.ray_address, self.workers)
            return cluster, self.workers or cluster.places
        if self.on == "slurm":
            from loopscale.sweep.backends.slurm import Slurm, read_settings

            assert self.workers is not None
            return Slurm(sweep.results, read_settings(self.slurm)), self.workers
        from loopscale.sweep.backends.local import Local

        local = Local(self.cores)
        return local, self.workers or len(local.cores)
