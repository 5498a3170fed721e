"""``loopscale sweep plan|run|status|export``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.options import COUNT, WHOLE, Quantity, output_options
from loopscale.cli.show import console, print_json
from loopscale.cli.sweep_show import plan_row, print_plan, print_status, print_summary, status_record, watch
from loopscale.errors import InputError
from loopscale.tables import Table


def _cores(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} is not a list of cores; write it like 0 or 0,1") from None


FILE = click.argument("file", type=click.Path(), metavar="SWEEP.toml")
CORES = Quantity("CORE,…", _cores)


@click.group("sweep")
def command() -> None:
    """Train a grid of runs as SWEEP.toml says; every finished point becomes an observation for `loopscale fit`.

    \b
    loopscale sweep plan SWEEP.toml
    loopscale sweep run SWEEP.toml --workers 2
    loopscale sweep status SWEEP.toml
    loopscale sweep export SWEEP.toml --out runs.csv
    """


@command.command("plan")
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

    from loopscale.sweep.calibration import as_measured, at_speed
    from loopscale.sweep.cores import usable_cores
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


@command.command("run")
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
    from loopscale.sweep.places import Place

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


@command.command("status")
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


@command.command("export")
@FILE
@click.option("--out", type=click.Path(), help="A CSV file.  [default: print it]")
def export(file: str, out: str | None) -> None:
    """Give the observations that are there, finished sweep or not, as a CSV that `loopscale fit` reads.

    \b
    loopscale sweep export SWEEP.toml --out runs.csv
    loopscale fit runs.csv --out law.json
    """
    from loopscale.sweep.export import table
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
