"""How far a sweep is: one line, a live view, and whether it is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from loopscale.cli.output import say
from loopscale.core.quantities import format_duration
from loopscale.sweep.progress import progress

if TYPE_CHECKING:
    from loopscale.sweep.store import RunState

FILE = click.argument("file", type=click.Path(), metavar="SWEEP")
"""The argument of every command."""


@contextmanager
def show_progress(name: str, quiet: bool) -> Iterator[Callable[[list[RunState]], None]]:
    """Show a bar for the whole sweep and one for each active run while the block runs."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from loopscale.core.progress import bars, occasional_lines

    columns = (
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    line = occasional_lines(not quiet)
    with bars(*columns, shown=not quiet, transient=False) as shown:
        whole = shown.add_task(name, total=1.0, note="")
        tasks: dict[str, Any] = {}

        def show(runs: list[RunState]) -> None:
            shown.update(whole, completed=progress(runs).share, note=describe(runs))
            line(f"{name}: {describe(runs)}")
            active = {run.key: run for run in runs if run.state == "running" and not run.stale}
            for key in set(tasks) - set(active):
                shown.remove_task(tasks.pop(key))
            for key, run in active.items():
                if key not in tasks:
                    tasks[key] = shown.add_task(f"  {key}", total=run.steps, note="")
                shown.update(tasks[key], completed=run.steps_done, note=f"{len(run.done)}/{len(run.points)} points")

        yield show


def describe(runs: Sequence[RunState]) -> str:
    """Return the progress of a sweep in one line."""
    now = progress(runs)
    failed = f", {now.failed} failed" if now.failed else ""
    left = f", about {format_duration(now.seconds_left)} left" if now.seconds_left else ""
    return f"{now.done}/{len(runs)} runs, {now.observations}/{now.wanted} observations{failed}{left}"


def print_summary(name: str, runs: Sequence[RunState]) -> None:
    """Print the progress of a sweep, and each failure in one line."""
    say(f"{name}: {describe(runs)}")
    for run in runs:
        if run.state == "failed":
            say(f"✗ {run.key}: {(run.error or '').strip().splitlines()[-1]}")


def is_over(runs: Sequence[RunState]) -> bool:
    """Tell whether every run is done or failed."""
    return all(run.state in ("done", "failed") for run in runs)
