"""How far a sweep is, and when it will be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopscale.sweep.store import RunState


@dataclass(frozen=True)
class Progress:
    """A sweep at one moment."""

    done: int
    failed: int
    running: int
    waiting: int
    observations: int
    wanted: int
    """Observations in all."""
    share: float
    """Of the whole cost, what is behind."""
    seconds_left: float | None
    """At the speed so far, with as many workers as now; None while nothing can be said."""


def progress(runs: Sequence[RunState]) -> Progress:
    """Add the runs up."""
    by = {state: sum(run.state == state for run in runs) for state in ("done", "failed", "running", "waiting")}
    spent = sum(run.seconds for run in runs)
    total = sum(run.cost for run in runs)
    behind = sum(run.cost * share_done(run) for run in runs)
    ahead = sum(run.cost * (1 - share_done(run)) for run in runs if run.state != "failed")
    at_work = sum(run.state == "running" and not run.stale for run in runs)
    left = ahead * spent / behind / max(1, at_work) if behind and spent else None
    return Progress(
        by["done"], by["failed"], by["running"], by["waiting"],
        sum(len(run.done & set(run.points)) for run in runs), sum(len(run.points) for run in runs),
        behind / total if total else 1.0, left,
    )  # fmt: skip


def share_done(run: RunState) -> float:
    """Return the share of a run's steps that is behind."""
    return 1.0 if run.state == "done" else min(1.0, run.steps_done / run.steps)


def duration(seconds: float | None) -> str:
    """Write a time as people say it."""
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
