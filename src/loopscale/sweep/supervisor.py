"""Supervise workers until every run is done: start them, replace those that crash, ask them to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from loopscale.core.errors import InputError, StorageError
from loopscale.sweep.backends import Launcher, Worker
from loopscale.sweep.spec import Sweep
from loopscale.sweep.store import Assignment, Resources, RunState, Store

POLL, LONGEST = 0.05, 1.0
"""Seconds between two looks at the store: short at first, so that short sweeps end at once, then longer."""
PATIENCE = 120.0
"""Seconds that workers have to save a checkpoint and end."""
MOST_FRUITLESS = 60
"""Workers in a row that crash while no run makes progress; then the sweep stops."""


@dataclass(frozen=True)
class StopAfter:
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
        limits: StopAfter,
        processes: int | None = None,
    ) -> None:
        self.store, self.launcher, self.most = store, launcher, workers
        only = tuple(run.key for run in store.claimable()[: limits.runs]) if limits.runs is not None else None
        self.assignment = Assignment(
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
            started += self.launcher.start(self._assignment_for(run.resources)) is not None
        return started

    def stop(self) -> None:
        """Ask the workers to save a checkpoint and end; end those that do not."""
        try:
            self.store.request_stop(self.assignment.session)
            until = time.monotonic() + PATIENCE
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
        if self._workers or claimable:
            return True
        # Runs may be held by workers that this process did not start or no longer watches.
        return not self._time_is_up() and any(
            run.state == "running" and self._is_chosen(run) for run in self.store.runs()
        )

    def _start(self, claimable: Sequence[RunState]) -> None:
        """Start as many workers as there are runs to claim; large runs first, as small ones could take their room."""
        for resources in sorted({run.resources for run in claimable}, key=lambda need: -need.processes):
            for _ in [run for run in claimable if run.resources == resources]:
                if len(self._workers) >= self.most:
                    return
                worker = self.launcher.start(self._assignment_for(resources))
                if worker is None:
                    break
                self._workers.append(worker)

    def _assignment_for(self, resources: Resources) -> Assignment:
        seconds = None if self._end is None else max(0.0, self._end - time.monotonic())
        return replace(self.assignment, resources=resources, seconds=seconds, crew=uuid4().hex)

    def _claimable(self) -> list[RunState]:
        return [run for run in self.store.claimable() if self._is_chosen(run)]

    def _is_chosen(self, run: RunState) -> bool:
        return self.assignment.only is None or run.key in self.assignment.only

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
