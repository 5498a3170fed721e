"""Where a sweep runs, by its word: local, ray or slurm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loopscale.errors import InputError
from loopscale.sweep.cores import check_cores
from loopscale.sweep.nursery import open_nursery

if TYPE_CHECKING:
    from loopscale.sweep.spec import Sweep
    from loopscale.sweep.supervise import Launcher


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
            from loopscale.sweep.on_ray import Ray

            cluster = Ray(self.ray_address, self.workers)
            return cluster, self.workers or cluster.places
        if self.on == "slurm":
            from loopscale.sweep.on_slurm import Slurm, read_settings

            assert self.workers is not None
            return Slurm(sweep.results, read_settings(self.slurm)), self.workers
        from loopscale.sweep.local import Local

        local = Local(self.cores)
        return local, self.workers or len(local.cores)
