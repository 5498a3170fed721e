"""Supervise workers until every run is done, on a backend: local processes, a Ray cluster or SLURM jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import uuid4

from loopscale.core.errors import InputError, StorageError
from loopscale.sweep.spec import Sweep
from loopscale.sweep.store import Job, Resources, RunState, Store

POLL, LONGEST = 0.05, 1.0
"""Seconds between two looks at the store: short at first, so that short sweeps end at once, then longer."""
MOST_FRUITLESS = 60
"""Workers in a row that crash while no run makes progress; then the sweep stops."""


class Worker(Protocol):
    """A worker that was started."""

    def alive(self) -> bool:
        """Tell whether it still works."""

    def succeeded(self) -> bool:
        """Tell whether an ended worker ended normally."""

    def problem(self) -> str | None:
        """Return the sentence of an ended worker about what stops every other worker too, or None."""

    def kill(self) -> None:
        """End it now."""


class Launcher(Protocol):
    """A backend."""

    def start(self, job: Job) -> Worker | None:
        """Start a worker; return None while there is no room for what its runs need."""

    def wait(self, seconds: float) -> None:
        """Wait so long, or less where the backend learns at once that a worker has ended."""

    def close(self) -> None:
        """Release what the backend holds."""


@dataclass(frozen=True)
class Limits:
    """When to stop before all runs are done."""

    runs: int | None = None
    minutes: float | None = None


class Supervisor:
    """Starts workers, replaces those that crash, and asks them to stop."""

    def __init__(
        self,
        sweep: Sweep,
        store: Store,
        launcher: Launcher,
        workers: int,
        limits: Limits,
        processes: int | None = None,
    ) -> None:
        self.store, self.launcher, self.most = store, launcher, workers
        only = tuple(run.key for run in store.claimable()[: limits.runs]) if limits.runs is not None else None
        self.job = Job(
            str(sweep.root),
            sweep.folder,
            uuid4().hex,
            sweep.keep_models,
            only,
            processes=processes,
            objects=sweep.objects,
        )
        self._end = None if limits.minutes is None else time.monotonic() + 60 * limits.minutes
        self._workers: list[Worker] = []
        self._fruitless = 0
        self._last_seen: object = None

    def run(self, show: Callable[[list[RunState]], None]) -> None:
        """Work until nothing is left to do; an interruption stops the workers at a checkpoint first."""
        try:
            pause = POLL
            while self._round():
                show(self.store.runs())
                self.launcher.wait(pause)
                pause = min(LONGEST, 1.1 * pause)
        except BaseException:
            self.stop()
            raise
        finally:
            self.launcher.close()
        show(self.store.runs())

    def submit(self) -> int:
        """Start workers without supervising them; return how many."""
        started = 0
        for run in self._claimable()[: self.most]:
            started += self.launcher.start(self._job_for(run.resources)) is not None
        return started

    def stop(self, patience: float = 120) -> None:
        """Ask the workers to save a checkpoint and end; end those that do not."""
        try:
            self.store.request_stop(self.job.session)
            until = time.monotonic() + patience
            while any(worker.alive() for worker in self._workers) and time.monotonic() < until:
                time.sleep(POLL)
        finally:
            for worker in self._workers:
                if worker.alive():
                    worker.kill()

    def _round(self) -> bool:
        """Reap exited workers and start replacements; tell whether there is anything to wait for."""
        for worker in [worker for worker in self._workers if not worker.alive()]:
            self._workers.remove(worker)
            self._reap(worker)
        claimable = [] if self._time_is_up() else self._claimable()
        self._start(claimable)
        return bool(self._workers) or bool(claimable) or (not self._time_is_up() and self._runs_elsewhere())

    def _start(self, claimable: Sequence[RunState]) -> None:
        """Start as many workers as there are runs to claim; large runs first, as small ones could take their room."""
        for resources in sorted({run.resources for run in claimable}, key=lambda need: -need.processes):
            for _ in [run for run in claimable if run.resources == resources]:
                if len(self._workers) >= self.most:
                    return
                worker = self.launcher.start(self._job_for(resources))
                if worker is None:
                    break
                self._workers.append(worker)

    def _job_for(self, resources: Resources) -> Job:
        seconds = None if self._end is None else max(0.0, self._end - time.monotonic())
        return replace(self.job, resources=resources, seconds=seconds, crew=uuid4().hex)

    def _claimable(self) -> list[RunState]:
        return [run for run in self.store.claimable() if self.job.only is None or run.key in self.job.only]

    def _runs_elsewhere(self) -> bool:
        """Tell whether workers that this process did not start, or that it lost sight of, hold runs."""
        return any(
            run.state == "running" and (self.job.only is None or run.key in self.job.only) for run in self.store.runs()
        )

    def _time_is_up(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def _reap(self, worker: Worker) -> None:
        """Stop the sweep when a worker reported a problem of all workers, or when too many crashed without progress."""
        problem = worker.problem()
        if problem is not None:
            raise StorageError(problem)
        seen = [(run.key, run.state, run.steps_done, len(run.done)) for run in self.store.runs()]
        self._fruitless = 0 if worker.succeeded() or seen != self._last_seen else self._fruitless + 1
        self._last_seen = seen
        if self._fruitless >= MOST_FRUITLESS:
            raise InputError(
                f"{self._fruitless} workers crashed one after another and no run made progress; "
                "their errors are printed above"
            )


@dataclass(frozen=True)
class Backend:
    """The options of ``sweep run`` that say where workers run."""

    on: str = "local"
    workers: int | None = None
    cores: Sequence[int] | None = None
    processes: int | None = None
    ray_address: str | None = None
    slurm: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for present, option, backend in (
            (self.cores is not None, "--cores", "local"),
            (self.ray_address is not None, "--ray-address", "ray"),
            (bool(self.slurm), "--slurm", "slurm"),
        ):
            if present and self.on != backend:
                raise InputError(f"{option} goes with --on {backend}, and this is --on {self.on}")
        if self.on == "slurm" and self.workers is None:
            raise InputError("--on slurm: give the number of jobs at once with --workers")
        if self.cores is not None:
            from loopscale.sweep.backends.local import check_cores

            check_cores(self.cores)

    def launcher(self, sweep: Sweep) -> tuple[Launcher, int]:
        """Return the backend's launcher, and the number of workers at once."""
        needs = {replace(run.resources, gpus=self.processes or run.resources.gpus) for run in sweep.runs}
        if self.on == "ray":
            from loopscale.sweep.backends.ray import Ray

            cluster = Ray(self.ray_address, self.workers, needs)
            return cluster, self.workers or cluster.workers
        if self.on == "slurm":
            from loopscale.sweep.backends.slurm import Slurm, read_settings

            assert self.workers is not None
            return Slurm(sweep.results, read_settings(self.slurm)), self.workers
        from loopscale.sweep.backends.local import Local

        local = Local(self.cores, self.workers, needs)
        return local, self.workers or local.workers
