"""``loopscale sweep status``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.text import Text

from loopscale.cli.output import console, print_json, rich_table
from loopscale.cli.params import json_option
from loopscale.cli.sweep.progress import FILE, describe, is_over
from loopscale.cli.verbs import verb
from loopscale.core.quantities import format_duration
from loopscale.sweep.progress import progress, share_done

if TYPE_CHECKING:
    from loopscale.sweep.store import RunState

BAR = 20
LISTED = 12
"""Runs that the status lists unless all are asked for."""
_COLUMNS = ("", "run", "points", "steps", "done", "time", "left", "cost", "worker")
_MARKS = {"done": "✓", "failed": "✗", "running": "▶", "waiting": "·"}


@verb("status", short_help="Show progress, failures, time left and cost.")
@FILE
@click.option("--all", "every", is_flag=True, help="Show every run, not only active and failed ones.")
@click.option("--live", is_flag=True, help="Keep the table up to date until the sweep is done.")
@click.option("--price", type=click.FloatRange(min=0), default=0.0, help="Dollars per process-hour, to show costs.")
@json_option
def status(file: str, every: bool, live: bool, price: float, as_json: bool) -> None:
    """Show the progress of the sweep: a mark for each run, failures, time left and cost.

    \b
    loopscale sweep status sweep.toml
    loopscale sweep status paper --live --price 2.5
    """
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.store import Store

    sweep = read_sweep(file)
    models = [run.config.model for run in sweep.runs]
    several = len({(model.rung, model.width, model.layers) for model in models}) > 1
    with Store(sweep.results) as store:

        def lines() -> Group:
            return status_lines(sweep.name, store.runs(), every, price, file, several)

        if as_json:
            print_json(status_record(sweep.name, store.runs()))
        elif live:
            _live(lines, lambda: is_over(store.runs()))
        else:
            console().print(lines())


def _live(lines: Callable[[], Group], over: Callable[[], bool]) -> None:
    """Show lines that change until something is over; Ctrl-C ends it."""
    from time import sleep

    from rich.live import Live

    with Live(lines(), console=console(), auto_refresh=False) as display:
        while not over():
            sleep(2)
            display.update(lines(), refresh=True)


def status_lines(
    name: str, runs: Sequence[RunState], every: bool, price: float, file: str = "", several_sizes: bool = True
) -> Group:
    """Return how far the sweep is, its active and failed runs, the cost, and the next command."""
    now = progress(runs)
    filled = round(BAR * now.share)
    bar = "█" * filled + "░" * (BAR - filled)
    lines = [Text(name, style="bold"), Text(f"{bar}  {describe(runs)}")]
    if every:
        lines.append(Text("".join(_MARKS[run.state] for run in runs)))
    if price:
        spent = sum(run.seconds * run.resources.processes for run in runs) / 3600 * price
        left = now.process_seconds_left
        ahead = "" if left is None else f", about {left / 3600 * price:,.2f} to come"
        lines.append(Text(f"{spent:,.2f} dollars spent{ahead}, at {price:g} per process-hour"))
    listed = [run for run in runs if every or run.state in ("running", "failed")]
    if not every and len(listed) > LISTED:
        listed = listed[:LISTED]
        lines.append(Text(f"the first {LISTED} active and failed runs; --all shows every run"))
    table = rich_table(_COLUMNS, [_status(run, price) for run in listed], left=("", "run", "worker"))
    failed = [run for run in listed if run.state == "failed"]
    failures = [Text(f"✗ {run.key}: {(run.error or '').strip()}") for run in failed]
    following = [Text(line) for line in _next(runs, file, several_sizes)]
    return Group(*lines, *([table] if listed else []), *failures, *following)


def _next(runs: Sequence[RunState], file: str, several_sizes: bool) -> Iterator[str]:
    """Say what to do with a sweep on which nothing works; a law needs several sizes."""
    if not file:
        return
    if is_over(runs):
        export = f"sweep export {file} --out runs.csv"
        yield f"Next: loopscale {f'fit {file} --out law.json' if several_sizes else export}"
    elif not any(run.state == "running" and not run.stale for run in runs):
        yield f"Not running. Resume: loopscale sweep run {file}"


def status_record(name: str, runs: Sequence[RunState]) -> dict[str, Any]:
    """Return the status as plain values."""
    listed = [{**asdict(run), "points": sorted(run.points), "done": sorted(run.done & set(run.points))} for run in runs]
    return {"kind": "sweep status", "name": name, **asdict(progress(runs)), "runs": listed}


def _status(run: RunState, price: float) -> tuple[str, ...]:
    worker = "worker lost; will be retried" if run.stale else run.worker or ""
    done = share_done(run)
    left = run.seconds * (1 - done) / done if done and run.seconds and run.state == "running" else None
    cost = f"{run.seconds * run.resources.processes / 3600 * price:.2f}" if price else "–"
    return (
        _MARKS[run.state], run.key, f"{len(run.done & set(run.points))}/{len(run.points)}", f"{run.steps:,}",
        f"{done:.0%}", format_duration(run.seconds), format_duration(left), cost, worker,
    )  # fmt: skip
