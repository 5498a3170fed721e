"""How far a sweep is: its runs added up, and the time that is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopscale.sweep.store import RunState


@dataclass(frozen=True)
class SweepProgress:
    """A sweep at one moment."""

    done: int
    failed: int
    running: int
    waiting: int
    observations: int
    wanted: int
    """Observations in all."""
    share: float
    """The part of the whole cost that is done."""
    seconds_left: float | None
    """At the speed so far, with as many workers as now; None before anything is done, and while nothing runs."""
    process_seconds_left: float | None = None
    """The same, added up over processes."""


def progress(runs: Sequence[RunState]) -> SweepProgress:
    """Add up the runs."""
    count = {state: sum(run.state == state for run in runs) for state in ("done", "failed", "running", "waiting")}
    spent = sum(run.seconds for run in runs)
    total = sum(run.cost for run in runs)
    done = sum(run.cost * share_done(run) for run in runs)
    remaining = sum(run.cost * (1 - share_done(run)) for run in runs if run.state != "failed")
    active = sum(run.state == "running" and not run.stale for run in runs)
    left = remaining * spent / done / active if done and spent and active else None
    processes = sum(run.seconds * run.resources.processes for run in runs)
    return SweepProgress(
        count["done"], count["failed"], count["running"], count["waiting"],
        sum(len(run.done & set(run.points)) for run in runs), sum(len(run.points) for run in runs),
        done / total if total else 1.0, left, remaining * processes / done if done and spent else None,
    )  # fmt: skip


def share_done(run: RunState) -> float:
    """Return the part of a run's steps that is done."""
    return 1.0 if run.state == "done" else min(1.0, run.steps_done / run.steps)
