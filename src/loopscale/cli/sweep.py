"""``loopscale sweep plan|run|status|export``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from loopscale.cli import COUNT, WHOLE, Quantity, console, output_options, print_json, print_table
from loopscale.errors import InputError
from loopscale.quantities import format_bytes, format_count
from loopscale.sweep.store import duration, progress, share_done
from loopscale.tables import Table

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


def _cores(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} is not a list of cores; write it like 0 or 0,1") from None


FILE = click.argument("file", type=click.Path(), metavar="SWEEP.toml")
CORES = Quantity("CORE,…", _cores)


@click.group("sweep")
def sweep_command() -> None:
    """Train a grid of runs as SWEEP.toml says; every finished point becomes an observation for `loopscale fit`.

    \b
    loopscale sweep plan SWEEP.toml
    loopscale sweep run SWEEP.toml --workers 2
    loopscale sweep status SWEEP.toml
    loopscale sweep export SWEEP.toml --out runs.csv
    """


@sweep_command.command("plan")
@FILE
@click.option("--workers", type=WHOLE, help="Workers that share the work.  [default: one for each core]")
@click.option("--speed", type=COUNT, help="FLOP/s of one worker, instead of timing a few steps here.")
@output_options
def plan(file: str, workers: int | None, speed: float | None, as_json: bool, as_csv: bool) -> None:
    """Say what the sweep would train and what it costs, before anything starts.

    \b
    loopscale sweep plan SWEEP.toml
    loopscale sweep plan SWEEP.toml --speed 5e9 --workers 64
    """
    from contextlib import chdir

    from loopscale.sweep.backends import usable_cores
    from loopscale.sweep.cost import as_measured, at_speed
    from loopscale.sweep.launch import checked

    sweep, costs = checked(file, progress=True)
    with chdir(sweep.root):
        seconds = at_speed(costs, speed) if speed else as_measured(costs, now=True)
    assert seconds is not None
    rows = [plan_row(cost, each) for cost, each in zip(costs, seconds, strict=True)]
    if as_json:
        print_json({"kind": "sweep plan", "name": sweep.name, "runs": rows})
    elif as_csv:
        click.echo(Table.from_records(rows).csv(), nl=False)
    else:
        print_plan(sweep.name, rows, workers or len(usable_cores()))


@sweep_command.command("run")
@FILE
@click.option(
    "--on",
    type=click.Choice(["local", "ray", "slurm"]),
    default="local",
    show_default=True,
    help="Processes of this machine, a Ray cluster, or SLURM jobs.",
)
@click.option("--workers", type=WHOLE, help="Workers at once.  [default: one for each core]")
@click.option("--cores", type=CORES, help="Cores to use, with --on local.  [default: all that may be]")
@click.option("--ray-address", help="A running cluster, like auto or HOST:6379.  [default: one of this machine]")
@click.option("--slurm", multiple=True, metavar="KEY=VALUE", help="A setting of the jobs, like partition=gpu.")
@click.option("--detach", is_flag=True, help="Submit SLURM jobs and leave them to themselves.")
@click.option("--retry-failed", is_flag=True, help="Try failed runs again.")
@click.option("--limit", type=WHOLE, help="Do this many runs at most.")
@click.option("--max-minutes", type=click.FloatRange(min=0), help="Stop after this time; a later call goes on.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def run(
    file: str,
    detach: bool,
    retry_failed: bool,
    limit: int | None,
    max_minutes: float | None,
    quiet: bool,
    **where: Any,
) -> None:
    """Train what is not trained yet; Ctrl-C stops at a checkpoint, and the same command goes on.

    \b
    loopscale sweep run SWEEP.toml --workers 2
    loopscale sweep run SWEEP.toml --cores 0 --max-minutes 60
    loopscale sweep run SWEEP.toml --on ray --ray-address auto
    loopscale sweep run SWEEP.toml --on slurm --workers 16 --slurm partition=cpu --slurm timeout_min=600
    """
    from loopscale.sweep.backends import Place

    place = Place(**where)
    if detach and place.on != "slurm":
        raise InputError("--detach goes with --on slurm: other workers end with this command")
    place.warm()
    from loopscale.sweep.launch import checked, opened
    from loopscale.sweep.supervise import Limits, Supervisor

    sweep, costs = checked(file, progress=not quiet)
    with opened(sweep, costs) as store:
        if retry_failed:
            store.retry_failed()
        launcher, workers = place.launcher(sweep)
        crew = Supervisor(sweep, store, launcher, workers, Limits(limit, max_minutes))
        if detach:
            console().print(f"{sweep.name}: {crew.submit()} jobs submitted", highlight=False)
            return
        with watch(sweep.name, quiet) as show:
            crew.run(show)
        found = store.runs()
    print_summary(sweep.name, found)
    if any(each.state == "failed" for each in found):
        raise SystemExit(1)


@sweep_command.command("status")
@FILE
@click.option("--all", "every", is_flag=True, help="Show every run, not only those at work and failed ones.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
def status(file: str, every: bool, as_json: bool) -> None:
    """Show how far the sweep is: ticks, failures with their errors, and the time left.

    \b
    loopscale sweep status SWEEP.toml
    """
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.store import Store

    sweep = read_sweep(file)
    with Store(sweep.results) as store:
        runs = store.runs()
    if as_json:
        print_json(status_record(sweep.name, runs))
    else:
        print_status(sweep.name, runs, every)


@sweep_command.command("export")
@FILE
@click.option("--out", type=click.Path(), help="A CSV file.  [default: print it]")
def export(file: str, out: str | None) -> None:
    """Give the observations that are there, finished sweep or not, as a CSV that `loopscale fit` reads.

    \b
    loopscale sweep export SWEEP.toml --out runs.csv
    loopscale fit runs.csv --out law.json
    """
    from loopscale.sweep.launch import table
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.store import Store

    sweep = read_sweep(file)
    with Store(sweep.results) as store:
        found = table(sweep, store)
    if out is None:
        click.echo(found.csv(), nl=False)
        return
    found.save(out)
    console().print(f"{len(found)} of {sweep.observations} observations are in {out}", highlight=False)
