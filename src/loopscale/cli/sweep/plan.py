"""``loopscale sweep plan``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from loopscale.cli.output import console, print_json, print_table
from loopscale.cli.params import COUNT, WHOLE, Quantity, output_options, price_option
from loopscale.cli.sweep.progress import FILE
from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError
from loopscale.core.quantities import counted, format_bytes, format_count, format_duration, fraction_of
from loopscale.core.tables import Table

if TYPE_CHECKING:
    from loopscale.sweep.cost import Cost

FRACTION = Quantity("SHARE", lambda text: fraction_of(text, "share"))


@verb("plan", short_help="Print runs, FLOPs, time, cost and memory beforehand.")
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

    from loopscale.planning.devices import find_device
    from loopscale.sweep.backends.local import usable_cores
    from loopscale.sweep.cost import as_measured, at_speed, checked, on_device, planned
    from loopscale.sweep.spec import read_sweep

    if device is not None and speed is not None:
        raise InputError("--device and --speed both say how fast the runs are; give one of them")
    target = None if device is None else _device(device, **assumed)
    sweep = read_sweep(file)
    if target is not None:
        costs = planned(sweep, find_device(target.name))
    else:
        costs = checked(sweep, progress=True) if speed is None else planned(sweep)
    if target is not None:
        seconds: list[float] | None = on_device(costs, target.utilisation)
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
    from loopscale.planning.devices import USABLE, find_device

    found = find_device(name)
    return Device(name.lower(), found.flops, found.memory, USABLE * found.memory, utilisation, price)


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
        f"{days} {device.name}-days at {device.utilisation:.0%} of listed rates (an assumption: nothing was measured "
        f"on one), {dollars} dollars at {device.price:g} an hour; about {format_duration(together)} with "
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
