"""``loopscale sweep extend``, ``export`` and ``rebuild``: the files of a sweep."""

from __future__ import annotations

from pathlib import Path

import click

from loopscale.cli.output import say
from loopscale.cli.sweep.progress import FILE
from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError
from loopscale.core.quantities import counted


@verb("extend", short_help="Add the runs that `loopscale next` recommends.")
@FILE
@click.option("--next", "next_runs", required=True, type=click.Path(), help="What `loopscale next` wrote (CSV, JSON).")
def extend(file: str, next_runs: str) -> None:
    """Add the runs that `loopscale next` recommends to the sweep's file.

    \b
    loopscale next runs.csv --budget 1e15 --for plan.json --csv > next.csv
    loopscale sweep extend sweep.toml --next next.csv
    loopscale sweep run sweep.toml
    """
    from loopscale.core.files import write_text
    from loopscale.sweep.spec import extended, shipped_sweeps

    if file in shipped_sweeps():
        raise InputError(f"{file} comes with loopscale and cannot be changed", remedy="extend a copy of its file")
    path = Path(file)
    text, count, sweep = extended(path, Path(next_runs))
    write_text(path, text)
    say(f"{path}: {counted(count, 'point')} added, {sweep.observations} in all")


@verb("export", short_help="Write the observations so far as a CSV file.")
@FILE
@click.option("--out", type=click.Path(), help="A CSV file.  [default: print it]")
@click.option("--best", is_flag=True, help="Of runs that differ only in training fields, keep the lowest loss.")
@click.option("--intermediate", is_flag=True, help="Add the validation losses on the way, marked as not finished.")
def export(file: str, out: str | None, best: bool, intermediate: bool) -> None:
    """Write the observations so far, finished sweep or not, as a CSV that `loopscale fit` reads.

    \b
    loopscale sweep export sweep.toml --out runs.csv
    loopscale fit runs.csv --out law.json
    """
    from loopscale.sweep.export import table
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.store import Store
    from loopscale.verify import verified

    if best and intermediate:
        raise InputError("--best chooses among finished points, and --intermediate adds others", remedy="give one")
    sweep = read_sweep(file)
    with Store(sweep.results) as store:
        observations, left_out = table(sweep, store, best=best, intermediate=intermediate)
    for reason in left_out:
        click.echo(f"left out: {reason}", err=True)
    verified(sweep.results)  # before anything is written that a law may be fitted to
    if out is None:
        click.echo(observations.csv(), nl=False)
        return
    observations.save(out)
    finished = sum(map(bool, observations.columns["finished"]))
    more = f", and {len(observations) - finished} on the way" if intermediate else ""
    say(f"{finished} of {sweep.observations} observations{more} are in {out}")


@verb("rebuild", short_help="Restore a damaged or lost database.")
@FILE
def rebuild(file: str) -> None:
    """Restore the sweep's database from the results in the runs' folders, after it was damaged or lost.

    The old database is kept under another name.

    \b
    loopscale sweep rebuild sweep.toml
    """
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.sync import rebuild as rebuild_database

    sweep = read_sweep(file)
    rebuilt = rebuild_database(sweep)
    say(f"{sweep.name}: {rebuilt.observations} of {sweep.observations} observations restored")
    for reason in rebuilt.skipped:
        say(f"left out: {reason}")
    if rebuilt.old is not None:
        say(f"the old database is {rebuilt.old}")
