"""``loopscale sweep plan``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from loopscale.cli.output import print_json
from loopscale.cli.params import (
    COUNT,
    WHOLE,
    check_device_options,
    output_options,
    price_option,
    utilisation_option,
)
from loopscale.cli.sweep.progress import FILE
from loopscale.cli.verbs import verb
from loopscale.core.devices import USABLE, Device, find_device, utilisation_of
from loopscale.core.errors import InputError
from loopscale.core.quantities import counted, format_bytes, format_count, format_duration, format_power
from loopscale.core.text import fact, text_table

if TYPE_CHECKING:
    from loopscale.sweep.cost import Cost


@verb("plan", short_help="Print runs, FLOPs, time, cost and memory beforehand.")
@FILE
@click.option("--workers", type=WHOLE, help="Runs at once.  [default: one for each core; with --device, one]")
@click.option("--speed", type=COUNT, help="FLOP/s of one worker, instead of timing a few steps here.")
@click.option("--device", help="Plan for GPUs of this kind, like h100, without timing anything.")
@utilisation_option()
@price_option
@output_options
def plan(
    file: str, workers: int | None, speed: float | None, device: str | None, utilisation: float | None, price: float,
    as_json: bool, as_csv: bool,
) -> None:  # fmt: skip
    """Print what the sweep would train and what it costs, before anything starts.

    \b
    loopscale sweep plan sweep.toml
    loopscale sweep plan sweep.toml --speed 5e9 --workers 64
    loopscale sweep plan paper --device h100
    """
    from contextlib import chdir

    from loopscale.core.tables import Table
    from loopscale.sweep.backends.local import usable_cores
    from loopscale.sweep.cost import as_measured, at_speed, checked, on_device, planned
    from loopscale.sweep.spec import read_sweep

    check_device_options(device)
    if device is not None and speed is not None:
        raise InputError("--device and --speed both say how fast the runs are; give one of them")
    share = utilisation_of(utilisation)
    target = None if device is None else PlannedDevice(device.lower(), find_device(device), share, price)
    sweep = read_sweep(file)
    if target is not None:
        costs = planned(sweep, target.device)
        seconds: list[float] | None = on_device(costs, target.utilisation)
    else:
        costs = checked(sweep, progress=True) if speed is None else planned(sweep)
        with chdir(sweep.root):
            seconds = at_speed(costs, speed) if speed else as_measured(costs, now=True)
    assert seconds is not None
    rows = [plan_row(cost, time) for cost, time in zip(costs, seconds, strict=True)]
    if as_json:
        print_json({"kind": "sweep plan", "name": sweep.name, "runs": rows})
    elif as_csv:
        click.echo(Table.from_records(rows).csv(), nl=False)
    else:
        print_plan(sweep.name, rows, workers or (1 if target else len(usable_cores())), target, file)


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
class PlannedDevice:
    """The device that a plan is for, and what is assumed of it."""

    name: str
    device: Device
    utilisation: float
    price: float
    """Dollars per hour."""


MOST_GROUPS = 8
"""Rows of the table by size and experts; more are put together by size."""
COLUMNS = ("size", "E", "R", "runs", "tokens", "FLOPs", "time", "memory", "disk")


def print_plan(name: str, rows: list[dict[str, Any]], workers: int, target: PlannedDevice | None, file: str) -> None:
    """Print the plan: runs, compute and time in a line, facts, a table by size, and the command that starts it."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["size"], row["experts"]), []).append(row)
    if len(groups) > MOST_GROUPS:
        groups = {}
        for row in rows:
            groups.setdefault((row["size"],), []).append(row)
    flops, seconds = _added(rows, "flops"), max(_added(rows, "seconds") / workers, max(row["seconds"] for row in rows))
    at_once = counted(workers, "worker" if target is None else "run") + ("" if target is None else " at once")
    losses = sum(row["observations"] for row in rows)
    answer = f"{name}: {counted(len(rows), 'run')}, {losses:,} losses"
    lines = [f"{answer}, about {format_duration(seconds)} with {at_once}", ""]
    alone, real = _added(rows, "flops_alone"), _added(rows, "real_flops")
    lines += fact("compute", f"{format_power(flops)} FLOPs by 6ND ({format_power(real)} with head, attention and "
                  f"padding; {format_power(alone)} by 6ND if every loss were a separate run)")  # fmt: skip
    for label, text in _time_and_memory(rows, target).items():
        lines += fact(label, text)
    lines += fact("disk", format_bytes(_added(rows, "disk")))
    table = text_table(COLUMNS, [_group(group) for group in groups.values()], left=("size", "E", "R"))
    click.echo("\n".join([*lines, "", table, f"Start it: loopscale sweep run {file}   each run: --csv, --json"]))


def _added(rows: list[dict[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in rows))


def _time_and_memory(rows: list[dict[str, Any]], target: PlannedDevice | None) -> dict[str, str]:
    total = _added(rows, "process_seconds")
    if target is None:
        return {"time": f"{format_duration(total)} of one core"}
    hours = total / 3600
    days, dollars = (f"{amount:,.{0 if amount >= 100 else 2}f}" for amount in (hours / 24, hours * target.price))
    usable = USABLE * target.device.memory
    most = max(rows, key=lambda row: row["memory"])
    facts = {
        "time": f"{days} {target.name}-days at {target.utilisation:.0%} of listed rates (assumed, not measured), "
        f"${dollars} at ${target.price:g} an hour",
        "memory": f"at most {format_bytes(most['memory'])} a process ({most['run']}) by a closed-form estimate; "
        f"tensors can use {format_bytes(usable)} of {target.name}'s {format_bytes(target.device.memory)}",
    }
    over = [row["run"] for row in rows if row["memory"] > usable]
    if over:
        facts["warning"] = (
            f"{len(over)} of {counted(len(rows), 'run')} {'does' if len(over) == 1 else 'do'} not fit on "
            f"{target.name}, the first is {over[0]}; raise [run] accumulate, set [run] activation_checkpointing or "
            '[parallel] reduce = "pass", or give their size more gpus in [resources]'
        )
    return facts


def _group(group: list[dict[str, Any]]) -> tuple[str, ...]:
    def listed(name: str) -> str:
        values = sorted({row[name] for row in group})
        return ",".join(map(str, values)) if len(values) < 5 else f"{values[0]}–{values[-1]}"

    return (
        group[0]["size"], listed("experts"), listed("recurrence"), str(len(group)),
        format_count(max(row["longest"] for row in group)), format_power(_added(group, "flops"), 2),
        format_duration(_added(group, "process_seconds")), format_bytes(max(row["memory"] for row in group)),
        format_bytes(_added(group, "disk")),
    )  # fmt: skip
