"""``loopscale sweep plan|run|status|watch|extend|export|rebuild``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.console import Group
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from loopscale.cli.output import console, print_json, print_table
from loopscale.cli.params import COUNT, WHOLE, Quantity, output_options, price_option
from loopscale.cli.verbs import VerbGroup
from loopscale.core.errors import InputError, LoopscaleError
from loopscale.core.progress import bars, occasional_lines
from loopscale.core.quantities import counted, format_bytes, format_count, format_duration, fraction_of
from loopscale.core.tables import Table
from loopscale.sweep.store import progress, share_done

if TYPE_CHECKING:
    from loopscale.fitting import Observations
    from loopscale.scaling import Points
    from loopscale.sweep.backends import Backend
    from loopscale.sweep.cost import Cost
    from loopscale.sweep.spec import Sweep
    from loopscale.sweep.store import RunState

_MARKS = {"done": "✓", "failed": "✗", "running": "▶", "waiting": "·"}


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
        "processes": run.resources.processes,
        "seconds": seconds,
        "process_seconds": seconds * run.resources.processes,
        "disk": cost.disk,
        "memory": cost.memory,
    }


@dataclass(frozen=True)
class Device:
    """The device that a plan is for, and what is assumed of it."""

    name: str
    flops: float
    memory: float
    usable: float
    """Bytes of the memory that tensors can use."""
    utilisation: float
    price: float
    """Dollars per hour."""


def print_plan(name: str, rows: list[dict[str, Any]], workers: int, device: Device | None) -> None:
    """Print the plan by size and experts, and its totals."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["size"], row["experts"]), []).append(row)
    time = "core time" if device is None else f"{device.name} time"
    print_table(
        f"{name}: {counted(len(rows), 'run')}, {sum(row['observations'] for row in rows)} observations",
        (
            "size",
            "E",
            "R",
            "seeds",
            "active",
            "runs",
            "points",
            "tokens",
            "FLOPs",
            "real FLOPs",
            time,
            "memory",
            "disk",
        ),
        [_group(size, experts, group) for (size, experts), group in groups.items()],
        left=("size", "R"),
        optional=("seeds", "real FLOPs", "points", "active"),
    )
    for line in _totals(rows, workers, device):
        console().print(line, highlight=False, markup=False)


def _totals(rows: list[dict[str, Any]], workers: int, device: Device | None) -> Iterator[str]:
    def added(name: str) -> float:
        return float(sum(row[name] for row in rows))

    yield (
        f"in all {format_count(added('flops'))} FLOPs as the paper counts ({format_count(added('flops_alone'))} if "
        f"every point were a separate run), {format_count(added('real_flops'))} real; "
        f"{format_bytes(added('disk'))} of disk"
    )
    longest = max(row["seconds"] for row in rows)
    if device is None:
        wall = max(added("seconds") / workers, longest)
        alone = format_duration(added("process_seconds"))
        yield f"{alone} of one core, about {format_duration(wall)} with {counted(workers, 'worker')}"
        return
    hours = added("process_seconds") / 3600
    together = max(added("seconds") / workers, longest)
    amounts = hours / 24, hours * device.price
    days, dollars = (f"{amount:,.{0 if amount >= 100 else 2}f}" for amount in amounts)
    yield (
        f"{days} {device.name}-days at {device.utilisation:.0%} of its peak (an assumption: nothing was measured on "
        f"one), {dollars} dollars at {device.price:g} an hour; about {format_duration(together)} with "
        f"{counted(workers, 'run')} at once"
    )
    most = max(rows, key=lambda row: row["memory"])
    yield (
        f"memory of one process by a closed-form estimate, not measured: at most {format_bytes(most['memory'])} "
        f"({most['run']}, {counted(most['processes'], 'process')}); {device.name}: "
        f"{format_bytes(device.memory)}, of which tensors can use {format_bytes(device.usable)}"
    )
    over = [row["run"] for row in rows if row["memory"] > device.usable]
    if over:
        yield (
            f"Warning: {len(over)} of {counted(len(rows), 'run')} {'does' if len(over) == 1 else 'do'} not fit on "
            f"{device.name}, the first is {over[0]}; raise [run] accumulate, set [run] activation_checkpointing or "
            '[parallel] reduce = "pass", or give their size more gpus in [resources]'
        )


def _group(size: str, experts: int, group: list[dict[str, Any]]) -> tuple[str, ...]:
    def listed(name: str) -> str:
        return ",".join(map(str, sorted({row[name] for row in group})))

    def added(name: str) -> float:
        return float(sum(row[name] for row in group))

    return (
        size, str(experts), listed("recurrence"), listed("seed"), format_count(group[0]["active"]), str(len(group)),
        f"{added('observations'):.0f}", format_count(max(row["longest"] for row in group)),
        format_count(added("flops")), format_count(added("real_flops")), format_duration(added("process_seconds")),
        format_bytes(max(row["memory"] for row in group)), format_bytes(added("disk")),
    )  # fmt: skip


@contextmanager
def show_progress(name: str, quiet: bool) -> Iterator[Callable[[list[RunState]], None]]:
    """Show a bar for the whole sweep and one for each active run while the block runs."""
    columns = (
        TextColumn("[bold]{task.description}"),
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
    out = console()
    out.print(f"{name}: {describe(runs)}", highlight=False, markup=False)
    for run in runs:
        if run.state == "failed":
            out.print(f"✗ {run.key}: {(run.error or '').strip().splitlines()[-1]}", highlight=False, markup=False)


def status_lines(name: str, runs: Sequence[RunState], every: bool, price: float) -> Group:
    """Return a mark for each run, a table of the active ones, time and cost, and failures with their errors."""
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "run", "points", "steps", "done", "time", "left", "cost", "worker"):
        table.add_column(column, justify="left" if column in ("", "run", "worker") else "right")
    for run in runs:
        if every or run.state in ("running", "failed"):
            table.add_row(*_status(run, price))
    marks = "".join(_MARKS[run.state] for run in runs)
    failures = [Text(f"✗ {run.key}: {(run.error or '').strip()}") for run in runs if run.state == "failed"]
    lines = [Text(f"{name}: {describe(runs)}", style="bold"), Text(marks)]
    if price:
        spent = sum(run.seconds * run.resources.processes for run in runs) / 3600 * price
        left = progress(runs).process_seconds_left
        ahead = "" if left is None else f", about {left / 3600 * price:,.2f} to come"
        lines.append(Text(f"{spent:,.2f} dollars spent{ahead}, at {price:g} per process-hour"))
    return Group(*lines, *([table] if table.row_count else []), *failures)


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


def _cores(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} is not a list of cores; write it like 0 or 0,1") from None


FILE = click.argument("file", type=click.Path(), metavar="SWEEP")
CORES = Quantity("CORE,…", _cores)
FRACTION = Quantity("SHARE", lambda text: fraction_of(text, "share"))


@click.group("sweep", cls=VerbGroup)
def sweep_command() -> None:
    """Train a grid of runs as a file says; every finished point becomes an observation for `loopscale fit`.

    SWEEP is a TOML file, or the name of a sweep that comes with loopscale: paper, case-study,
    paper-mini, micro or micro-2.

    \b
    loopscale sweep plan sweep.toml
    loopscale sweep run sweep.toml --workers 2
    loopscale sweep status sweep.toml --live
    loopscale sweep export sweep.toml --out runs.csv
    """


@sweep_command.command("plan", short_help="Print runs, FLOPs, time, cost and memory beforehand.")
@FILE
@click.option("--workers", type=WHOLE, help="Runs at once.  [default: one for each core; with --device, one]")
@click.option("--speed", type=COUNT, help="FLOP/s of one worker, instead of timing a few steps here.")
@click.option("--device", help="Plan for GPUs of this kind, like h100, without timing anything.")
@click.option("--utilisation", type=FRACTION, default="0.4", show_default=True, help="Share of the device's peak.")
@price_option
@output_options
def plan(
    file: str, workers: int | None, speed: float | None, device: str | None, as_json: bool, as_csv: bool, **assumed: Any
) -> None:
    """Print what the sweep would train and what it costs, before anything starts.

    \b
    loopscale sweep plan sweep.toml
    loopscale sweep plan sweep.toml --speed 5e9 --workers 64
    loopscale sweep plan paper --device h100
    """
    from contextlib import chdir

    from loopscale.sweep.backends.local import usable_cores
    from loopscale.sweep.cost import as_measured, at_speed, checked, on_device, planned
    from loopscale.sweep.spec import read_sweep

    if device is not None and speed is not None:
        raise InputError("--device and --speed both say how fast the runs are; give one of them")
    target = None if device is None else _device(device, **assumed)
    sweep = read_sweep(file)
    costs = checked(sweep, progress=True) if target is None and speed is None else planned(sweep)
    if target is not None:
        seconds: list[float] | None = on_device(costs, target.flops, target.utilisation)
    else:
        with chdir(sweep.root):
            seconds = at_speed(costs, speed) if speed else as_measured(costs, now=True)
    assert seconds is not None
    rows = [plan_row(cost, time) for cost, time in zip(costs, seconds, strict=True)]
    if as_json:
        print_json({"kind": "sweep plan", "name": sweep.name, "runs": rows})
    elif as_csv:
        click.echo(Table.from_records(rows).csv(), nl=False)
    else:
        print_plan(sweep.name, rows, workers or (1 if target else len(usable_cores())), target)


def _device(name: str, utilisation: float, price: float) -> Device:
    from loopscale.planning.devices import find_device
    from loopscale.train.estimate import USABLE

    found = find_device(name)
    return Device(name.lower(), found.flops, found.memory, USABLE * found.memory, utilisation, price)


@sweep_command.command("run", short_help="Train what is not trained yet, or resume.")
@FILE
@click.option(
    "--on",
    type=click.Choice(["local", "ray", "slurm"]),
    default="local",
    show_default=True,
    help="Processes of this machine, a Ray cluster, or SLURM jobs.",
)
@click.option("--workers", type=WHOLE, help="Workers at once.  [default: one for each core]")
@click.option("--cores", type=CORES, help="Cores to use, with --on local.  [default: all]")
@click.option("--processes", type=WHOLE, help="Processes of a run on each node.  [default: gpus of [resources]]")
@click.option("--ray-address", help="A running cluster, like auto or HOST:6379.  [default: one of this machine]")
@click.option("--slurm", multiple=True, metavar="KEY=VALUE", help="A setting of the jobs, like partition=gpu.")
@click.option("--detach", is_flag=True, help="Submit SLURM jobs and return.")
@click.option("--retry-failed", is_flag=True, help="Try failed runs again.")
@click.option("--limit", type=WHOLE, help="Train at most this many runs.")
@click.option("--max-minutes", type=click.FloatRange(min=0), help="Stop after this time; a later call resumes.")
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
    """Train what is not trained yet; Ctrl-C stops at a checkpoint, and the same command resumes.

    \b
    loopscale sweep run sweep.toml --workers 2
    loopscale sweep run sweep.toml --cores 0 --max-minutes 60
    loopscale sweep run sweep.toml --on ray --ray-address auto
    loopscale sweep run sweep.toml --on slurm --workers 16 --slurm partition=gpu
    """
    from loopscale.sweep.backends import Backend, Limits, Supervisor
    from loopscale.sweep.backends.local import call, open_forkserver
    from loopscale.sweep.launch import opened, prepared
    from loopscale.sweep.spec import read_sweep

    backend = Backend(**where)
    if detach and backend.on != "slurm":
        raise InputError("--detach goes with --on slurm: other workers end with this command")
    open_forkserver()  # it loads torch while the file is read here
    sweep = read_sweep(file)
    if sweep.tune is not None:
        sweep = _tune(sweep, backend, max_minutes, quiet, detach)
    with opened(sweep, call(prepared, sweep, not quiet)) as store:
        if retry_failed:
            store.retry_failed()
        launcher, workers = backend.launcher(sweep)
        supervisor = Supervisor(sweep, store, launcher, workers, Limits(limit, max_minutes), backend.processes)
        if detach:
            console().print(f"{sweep.name}: {supervisor.submit()} jobs submitted", highlight=False)
            return
        with show_progress(sweep.name, quiet) as show:
            supervisor.run(show)
        runs = store.runs()
    print_summary(sweep.name, runs)
    if any(run.state == "failed" for run in runs):
        raise SystemExit(1)


def _tune(sweep: Sweep, backend: Backend, max_minutes: float | None, quiet: bool, detach: bool) -> Sweep:
    """Search for the rates of [tune], unless they are known, and return the sweep with them."""
    from loopscale.sweep.backends import Limits, Supervisor
    from loopscale.sweep.backends.local import call
    from loopscale.sweep.launch import opened, prepared
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.tune import Losses, Search, fit_rates, law_path

    if law_path(sweep).is_file():
        return sweep
    if detach:
        raise InputError(f"{sweep.path}: [tune] has no rates yet; run it once without --detach")

    def train(short: Sweep) -> Losses:
        with opened(short, call(prepared, short, not quiet)) as store:
            launcher, workers = backend.launcher(short)
            supervisor = Supervisor(short, store, launcher, workers, Limits(None, max_minutes), backend.processes)
            with show_progress(short.name, quiet) as show:
                supervisor.run(show)
            if not _is_over(store.runs()):  # the time is up; a later call resumes the search
                print_summary(short.name, store.runs())
                raise SystemExit(0)
            losses: dict[str, dict[int, float]] = {}
            for key, tokens, loss, _ in store.observations():
                losses.setdefault(key, {})[tokens] = loss
        return losses

    law = fit_rates(Search(sweep).run(train))
    law.save(law_path(sweep))
    centre = ", ".join(f"{name} {format_count(value)}" for name, value in law.centre.items())
    console().print(f"{sweep.name}: {law}" + (f"; centre: {centre}" if centre else ""), highlight=False)
    return read_sweep(sweep.path)


@sweep_command.command("status", short_help="Show progress, failures, time left and cost.")
@FILE
@click.option("--all", "every", is_flag=True, help="Show every run, not only active and failed ones.")
@click.option("--live", is_flag=True, help="Keep the table up to date until the sweep is done.")
@click.option("--price", type=click.FloatRange(min=0), default=0.0, help="Dollars per process-hour, to show costs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
def status(file: str, every: bool, live: bool, price: float, as_json: bool) -> None:
    """Show the progress of the sweep: a mark for each run, failures, time left and cost.

    \b
    loopscale sweep status sweep.toml
    loopscale sweep status paper --live --price 2.5
    """
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.store import Store

    sweep = read_sweep(file)
    with Store(sweep.results) as store:
        runs = store.runs()
        if as_json:
            print_json(status_record(sweep.name, runs))
        elif live:
            _live(lambda: status_lines(sweep.name, store.runs(), every, price), lambda: _is_over(store.runs()))
        else:
            console().print(status_lines(sweep.name, runs, every, price))


def _is_over(runs: Sequence[RunState]) -> bool:
    return all(run.state in ("done", "failed") for run in runs)


def _live(lines: Callable[[], Group], over: Callable[[], bool], every: float = 2.0) -> None:
    """Show lines that change until something is over; Ctrl-C ends it."""
    from time import sleep

    from rich.live import Live

    with Live(lines(), console=console(), auto_refresh=False) as display:
        while not over():
            sleep(every)
            display.update(lines(), refresh=True)


@sweep_command.command("watch", short_help="Fit the law again whenever points arrive.")
@FILE
@click.option(
    "--every",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds between checks.",
)
@click.option("--once", is_flag=True, help="Fit what is there now, print one line and return.")
@click.option("--resamples", type=WHOLE, default=40, show_default=True, help="Resampled laws behind the interval.")
def watch(file: str, every: float, once: bool, resamples: int) -> None:
    """Fit the law again whenever points arrive, and show how its uncertainty shrinks.

    Each line gives the error of the fit and the predicted loss of the sweep's largest run with its 90% interval.

    \b
    loopscale sweep watch sweep.toml
    """
    from time import sleep

    from loopscale.sweep.launch import largest_point, observations
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.store import Store

    sweep = read_sweep(file)
    seen = -1
    with Store(sweep.results) as store:
        while True:
            over, recorded = _is_over(store.runs()), sum(1 for _ in store.observations())
            if recorded != seen:
                seen = recorded
                click.echo(_watch_line(lambda: observations(sweep, store)[0], largest_point(sweep, store), resamples))
            if over or once:
                return
            sleep(every)


def _watch_line(read: Callable[[], Observations], target: Points | None, resamples: int) -> str:
    """Return a line about the law that the observations so far give, or why they give none."""
    from loopscale.fitting import fit

    try:
        data = read()
        law = fit(data, resamples=resamples)
    except LoopscaleError as error:
        return f"no law yet: {error}"
    line = f"{len(data)} observations: {law.law.outer.name} law, rmse {law.law.rmse or 0:.4f}"
    if target is not None:
        predicted = law.predict_points(target)
        low, high = float(predicted.low.item()), float(predicted.high.item())
        line += f"; largest run {float(predicted.value.item()):.4f} [{low:.4f}, {high:.4f}], width {high - low:.4f}"
    return line + (f"; {counted(len(law.warnings), 'warning')} (see `loopscale fit`)" if law.warnings else "")


@sweep_command.command("extend", short_help="Add the runs that `loopscale next` recommends.")
@FILE
@click.option("--next", "next_runs", required=True, type=click.Path(), help="What `loopscale next` wrote (CSV, JSON).")
def extend(file: str, next_runs: str) -> None:
    """Add the runs that `loopscale next` recommends to the sweep's file.

    \b
    loopscale next runs.csv --budget 1e15 --for plan.json --csv > next.csv
    loopscale sweep extend sweep.toml --next next.csv
    loopscale sweep run sweep.toml
    """
    from pathlib import Path

    from loopscale.core.files import write_text
    from loopscale.sweep.spec import extended, read_sweep, shipped_sweeps

    if file in shipped_sweeps():
        raise InputError(f"{file} comes with loopscale and cannot be changed; extend a copy of its file")
    path = Path(file)
    text, count = extended(path, Path(next_runs))
    trial = path.with_name(f".{path.stem}.extended.toml")
    write_text(trial, text)
    try:
        sweep = read_sweep(trial)  # what cannot be trained is refused before the file changes
    except InputError as error:
        raise InputError(str(error).replace(str(trial), next_runs)) from None
    finally:
        trial.unlink()
    write_text(path, text)
    console().print(f"{path}: {counted(count, 'point')} added, {sweep.observations} in all", highlight=False)


@sweep_command.command("export", short_help="Write the observations so far as a CSV file.")
@FILE
@click.option("--out", type=click.Path(), help="A CSV file.  [default: print it]")
@click.option("--best", is_flag=True, help="Of runs that differ only in training fields, keep the lowest loss.")
def export(file: str, out: str | None, best: bool) -> None:
    """Write the observations so far, finished sweep or not, as a CSV that `loopscale fit` reads.

    \b
    loopscale sweep export sweep.toml --out runs.csv
    loopscale fit runs.csv --out law.json
    """
    from loopscale.sweep.launch import table
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.store import Store
    from loopscale.verify import refuse_damage

    sweep = read_sweep(file)
    with Store(sweep.results) as store:
        observations = table(sweep, store, best=best)
    refuse_damage(sweep.results)  # before anything is written that a law may be fitted to
    if out is None:
        click.echo(observations.csv(), nl=False)
        return
    observations.save(out)
    console().print(f"{len(observations)} of {sweep.observations} observations are in {out}", highlight=False)


@sweep_command.command("rebuild", short_help="Restore a damaged or lost database.")
@FILE
def rebuild(file: str) -> None:
    """Restore the sweep's database from the results in the runs' folders, after it was damaged or lost.

    The old database is kept under another name.

    \b
    loopscale sweep rebuild sweep.toml
    """
    from loopscale.sweep.launch import prepared
    from loopscale.sweep.launch import rebuild as rebuild_database
    from loopscale.sweep.spec import read_sweep

    sweep = read_sweep(file)
    rebuilt = rebuild_database(sweep, prepared(sweep, progress=True))
    out = console()
    out.print(f"{sweep.name}: {rebuilt.observations} of {sweep.observations} observations restored", highlight=False)
    for reason in rebuilt.skipped:
        out.print(f"left out: {reason}", highlight=False, markup=False)
    if rebuilt.old is not None:
        out.print(f"the old database is {rebuilt.old}", highlight=False)
