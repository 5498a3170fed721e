"""Keeping workers at work until every run is done, wherever they run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from loopscale.errors import InputError
from loopscale.sweep.spec import Sweep
from loopscale.sweep.store import RunState, Store
from loopscale.sweep.worker import Job, stop_fact

POLL, LONGEST = 0.05, 1.0
"""Seconds between two looks at the store: few at first, so that short sweeps end at once, then more."""
MOST_FRUITLESS = 60
"""Workers in a row that end with an error while nothing gets any further."""


class Worker(Protocol):
    """A worker that was started."""

    def alive(self) -> bool:
        """Tell whether it still works."""

    def well(self) -> bool:
        """Tell, of one that has ended, whether it ended by itself."""

    def kill(self) -> None:
        """End it now."""


class Launcher(Protocol):
    """A place where workers run."""

    def start(self, job: Job, place: int) -> Worker:
        """Start the worker of a place from 0 up."""

    def close(self) -> None:
        """Leave the place as it was found."""


@dataclass(frozen=True)
class Limits:
    """When to stop before all is done."""

    runs: int | None = None
    minutes: float | None = None


class Supervisor:
    """The process that was called: it starts workers, replaces those that die, and asks them to stop."""

    def __init__(self, sweep: Sweep, store: Store, launcher: Launcher, workers: int, limits: Limits) -> None:
        self.store, self.launcher, self.workers = store, launcher, workers
        only = tuple(store.claimable()[: limits.runs]) if limits.runs is not None else None
        deadline = None if limits.minutes is None else time.time() + 60 * limits.minutes
        self.job = Job(str(sweep.root), sweep.folder, uuid4().hex, sweep.keep_models, only, deadline)
        self._places: dict[int, Worker] = {}
        self._fruitless = 0
        self._seen: object = None

    def run(self, show: Callable[[list[RunState]], None]) -> None:
        """Work until nothing is left to do; an interruption stops the workers cleanly first."""
        try:
            pause = POLL
            while self._round():
                show(self.store.runs())
                time.sleep(pause)
                pause = min(LONGEST, 1.1 * pause)
        except KeyboardInterrupt:
            self.stop()
            raise
        finally:
            show(self.store.runs())
            self.launcher.close()

    def submit(self) -> int:
        """Start workers and leave them to themselves; return how many."""
        count = min(self.workers, len(self._claimable()))
        for place in range(count):
            self.launcher.start(self.job, place)
        return count

    def stop(self, patience: float = 120) -> None:
        """Ask the workers to leave a checkpoint and end; those that do not are ended."""
        self.store.set_fact(stop_fact(self.job.session), "")
        until = time.monotonic() + patience
        try:
            while any(each.alive() for each in self._places.values()) and time.monotonic() < until:
                time.sleep(POLL)
        finally:
            for each in self._places.values():
                if each.alive():
                    each.kill()

    def _round(self) -> bool:
        """Bury the dead, start who is wanted; tell whether there is anything to wait for."""
        for place, worker in list(self._places.items()):
            if not worker.alive():
                self._buried(worker)
                del self._places[place]
        claimable = [] if self._over() else self._claimable()
        free = [place for place in range(self.workers) if place not in self._places]
        for place in free[: len(claimable)]:
            self._places[place] = self.launcher.start(self.job, place)
        return bool(self._places) or bool(claimable) or (not self._over() and self._elsewhere())

    def _claimable(self) -> list[str]:
        return [key for key in self.store.claimable() if self.job.only is None or key in self.job.only]

    def _elsewhere(self) -> bool:
        """Tell whether runs are in the hands of workers that this process did not start, or that are out of sight."""
        return any(
            run.state == "running" and (self.job.only is None or run.key in self.job.only) for run in self.store.runs()
        )

    def _over(self) -> bool:
        return self.job.deadline is not None and time.time() >= self.job.deadline

    def _buried(self, worker: Worker) -> None:
        """Count workers that fail without any run getting further: something is wrong with all of them."""
        seen = [(run.key, run.state, run.steps_done, len(run.done)) for run in self.store.runs()]
        self._fruitless = 0 if worker.well() or seen != self._seen else self._fruitless + 1
        self._seen = seen
        if self._fruitless >= MOST_FRUITLESS:
            raise InputError(
                f"{self._fruitless} workers ended with an error one after the other and no run got further; "
                "see what they wrote above"
            )
