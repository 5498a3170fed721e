"""What the verbs of ``loopscale sweep`` print."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from loopscale.cli.show import console, print_table
from loopscale.quantities import format_bytes, format_count
from loopscale.sweep.progress import duration, progress, share_done

if TYPE_CHECKING:
    from loopscale.sweep.cost import Cost
    from loopscale.sweep.store import RunState

_TICKS = {"done": "✓", "failed": "✗", "running": "▶", "waiting": "·"}


def plan_row(cost: Cost, seconds: float) -> dict[str, Any]:
    """Return a run of the plan as a record."""
    run, architecture = cost.run, cost.model.to_architecture()
    return {
        "run": run.key,
        "size": run.cell.size,
        "experts": run.cell.experts,
        "recurrence": run.cell.recurrence,
        "seed": run.cell.seed,
        "active": int(architecture.active),
        "total": int(architecture.total),
        "observations": len(run.points),
        "longest": max(run.points),
        "learning_rate": run.config.optimizer.learning_rate,
        "flops_alone": cost.alone,
        "flops": cost.shared,
        "real_flops": cost.real,
        "seconds": seconds,
        "disk": cost.disk,
    }


def print_plan(name: str, rows: list[dict[str, Any]], workers: int) -> None:
    """Print the plan by size and experts, and what it comes to."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["size"], row["experts"]), []).append(row)
    print_table(
        f"{name}: {len(rows)} runs, {sum(row['observations'] for row in rows)} observations",
        ("size", "E", "R", "seeds", "active", "runs", "points", "tokens", "FLOPs", "real FLOPs", "core time", "disk"),
        [_group(size, experts, group) for (size, experts), group in groups.items()],
        left=("size", "R"),
    )
    total = {key: sum(row[key] for row in rows) for key in ("flops_alone", "flops", "real_flops", "seconds", "disk")}
    spread = max(total["seconds"] / workers, max(row["seconds"] for row in rows))
    console().print(
        f"in all {format_count(total['flops'])} FLOPs as the paper counts ({format_count(total['flops_alone'])} if "
        f"every point were a run of its own), {format_count(total['real_flops'])} real; "
        f"{duration(total['seconds'])} of one core, about {duration(spread)} of {workers}; "
        f"{format_bytes(total['disk'])} of disk",
        highlight=False,
    )


def _group(size: str, experts: int, group: list[dict[str, Any]]) -> tuple[str, ...]:
    def listed(name: str) -> str:
        return ",".join(map(str, sorted({row[name] for row in group})))

    def added(name: str) -> float:
        return float(sum(row[name] for row in group))

    return (
        size, str(experts), listed("recurrence"), listed("seed"), format_count(group[0]["active"]), str(len(group)),
        f"{added('observations'):.0f}", format_count(max(row["longest"] for row in group)),
        format_count(added("flops")), format_count(added("real_flops")), duration(added("seconds")),
        format_bytes(added("disk")),
    )  # fmt: skip


@contextmanager
def watch(name: str, quiet: bool) -> Iterator[Callable[[list[RunState]], None]]:
    """Show the whole sweep and the runs at work, on standard error, while the block runs."""
    out = Console(stderr=True)
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[said]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=out, disable=quiet or not out.is_terminal) as bars:
        whole = bars.add_task(name, total=1.0, said="")
        each: dict[str, Any] = {}

        def show(runs: list[RunState]) -> None:
            bars.update(whole, completed=progress(runs).share, said=describe(runs))
            active = {run.key: run for run in runs if run.state == "running" and not run.stale}
            for key in set(each) - set(active):
                bars.remove_task(each.pop(key))
            for key, run in active.items():
                if key not in each:
                    each[key] = bars.add_task(f"  {key}", total=run.steps, said="")
                bars.update(each[key], completed=run.steps_done, said=f"{len(run.done)}/{len(run.points)} points")

        yield show


def describe(runs: Sequence[RunState]) -> str:
    """Return how far a sweep is, in a line."""
    now = progress(runs)
    failed = f", {now.failed} failed" if now.failed else ""
    left = f", about {duration(now.seconds_left)} left" if now.seconds_left else ""
    return f"{now.done}/{len(runs)} runs, {now.observations}/{now.wanted} observations{failed}{left}"


def print_summary(name: str, runs: Sequence[RunState]) -> None:
    """Print how far a sweep is, and each failure in a line."""
    out = console()
    out.print(f"{name}: {describe(runs)}", highlight=False, markup=False)
    for run in runs:
        if run.state == "failed":
            out.print(f"✗ {run.key}: {(run.error or '').strip().splitlines()[-1]}", highlight=False, markup=False)


def print_status(name: str, runs: Sequence[RunState], every: bool) -> None:
    """Print ticks by run, and failures with all that is known of them."""
    out = console()
    out.print(f"[bold]{name}[/]: {describe(runs)}", highlight=False)
    out.print("".join(_TICKS[run.state] for run in runs), highlight=False)
    shown = [run for run in runs if every or run.state in ("running", "failed")]
    if shown:
        columns = ("", "run", "points", "steps", "done", "time", "worker")
        print_table("", columns, [_status(run) for run in shown], left=("", "run", "worker"))
    for run in runs:
        if run.state == "failed":
            out.print(f"✗ {run.key}: {(run.error or '').strip()}", highlight=False, markup=False)


def status_record(name: str, runs: Sequence[RunState]) -> dict[str, Any]:
    """Return the status as plain values."""
    listed = [{**asdict(run), "points": sorted(run.points), "done": sorted(run.done & set(run.points))} for run in runs]
    return {"kind": "sweep status", "name": name, **asdict(progress(runs)), "runs": listed}


def _status(run: RunState) -> tuple[str, ...]:
    worker = "gone; waits to be taken over" if run.stale else run.worker or ""
    return (
        _TICKS[run.state], run.key, f"{len(run.done & set(run.points))}/{len(run.points)}", f"{run.steps:,}",
        f"{share_done(run):.0%}", duration(run.seconds), worker,
    )  # fmt: skip
