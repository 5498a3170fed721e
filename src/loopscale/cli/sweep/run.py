"""``loopscale sweep run``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from loopscale.cli.output import say
from loopscale.cli.params import WHOLE, QuantityType
from loopscale.cli.sweep.progress import FILE, is_over, print_summary, show_progress
from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_count
from loopscale.sweep.backends import Backend, backends

if TYPE_CHECKING:
    from loopscale.sweep.spec import Sweep


def _backend_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for every setting of a backend."""
    for name, backend in reversed(backends().items()):
        for setting_name, setting in reversed(list(backend.settings.items())):
            kind = QuantityType(setting.metavar, setting.read)
            text = f"{setting.help}  (--on {name})"
            option = f"--{setting_name.replace('_', '-')}"
            command = click.option(option, type=kind, multiple=setting.repeated, help=text)(command)
    return command


def _chosen_backend(on: str, workers: int | None, processes: int | None, settings: dict[str, Any]) -> Backend:
    """Return the backend of ``--on``; a setting of another one is refused."""
    stated = {name: value for name, value in settings.items() if value not in (None, ())}
    for name, backend in backends().items():
        for setting in stated:
            if setting in backend.settings and name != on:
                raise InputError(f"`{setting}` goes with --on {name}, and this is --on {on}")
    return backends()[on](workers, processes, **stated)


@verb("run", short_help="Train what is not trained yet, or resume.")
@FILE
@click.option(
    "--on",
    type=click.Choice(list(backends())),
    default="local",
    show_default=True,
    help=f"Where runs are trained: {', '.join(f'{name} ({kind.summary})' for name, kind in backends().items())}.",
)
@click.option("--workers", type=WHOLE, help="Workers at once.  [default: one for each core]")
@click.option("--processes", type=WHOLE, help="Processes of a run on each node.  [default: gpus of [resources]]")
@_backend_options
@click.option("--detach", is_flag=True, help="Submit jobs and return, with --on slurm.")
@click.option("--retry-failed", is_flag=True, help="Try failed runs again.")
@click.option("--limit", type=WHOLE, help="Train at most this many runs.")
@click.option("--max-minutes", type=click.FloatRange(min=0), help="Stop after this time; a later call resumes.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def run(
    file: str,
    on: str,
    workers: int | None,
    processes: int | None,
    detach: bool,
    retry_failed: bool,
    limit: int | None,
    max_minutes: float | None,
    quiet: bool,
    **settings: Any,
) -> None:
    """Train what is not trained yet; Ctrl-C stops at a checkpoint, and the same command resumes.

    \b
    loopscale sweep run sweep.toml --workers 2
    loopscale sweep run sweep.toml --cores 0 --max-minutes 60
    loopscale sweep run sweep.toml --on ray --ray-address auto
    loopscale sweep run sweep.toml --on slurm --workers 16 --slurm partition=gpu
    """
    from loopscale.sweep.backends.local import call, open_forkserver
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.supervisor import StopAfter, Supervisor
    from loopscale.sweep.sync import opened, prepared

    backend = _chosen_backend(on, workers, processes, settings)
    if detach and not backend.detaches:
        others = " or ".join(f"--on {name}" for name, kind in backends().items() if kind.detaches)
        raise InputError(f"`detach` goes with {others}: other workers end with this command")
    open_forkserver()  # it loads torch while the file is read here
    sweep = read_sweep(file)
    if sweep.tune is not None:
        sweep = _tune(sweep, backend, max_minutes, quiet, detach)
    with opened(sweep, call(prepared, sweep, not quiet)) as store:
        if retry_failed:
            store.retry_failed()
        launcher, at_once = backend.launcher(sweep)
        supervisor = Supervisor(sweep, store, launcher, at_once, StopAfter(limit, max_minutes), backend.processes)
        if detach:
            say(f"{sweep.name}: {supervisor.submit()} jobs submitted")
            return
        with show_progress(sweep.name, quiet) as show:
            supervisor.run(show)
        runs = store.runs()
    print_summary(sweep.name, runs)
    if any(run.state == "failed" for run in runs):
        raise SystemExit(1)


def _tune(sweep: Sweep, backend: Backend, max_minutes: float | None, quiet: bool, detach: bool) -> Sweep:
    """Search for the rates of [tune], unless they are known, and return the sweep with them."""
    from loopscale.sweep.backends.local import call
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.supervisor import StopAfter, Supervisor
    from loopscale.sweep.sync import opened, prepared
    from loopscale.sweep.tune import Losses, RateSearch, fit_rates, law_path

    if law_path(sweep).is_file():
        return sweep
    if detach:
        raise InputError("[tune] has no rates yet", where=str(sweep.path), remedy="run it once without --detach")

    def train(short: Sweep) -> Losses:
        with opened(short, call(prepared, short, not quiet)) as store:
            launcher, workers = backend.launcher(short)
            supervisor = Supervisor(short, store, launcher, workers, StopAfter(None, max_minutes), backend.processes)
            with show_progress(short.name, quiet) as show:
                supervisor.run(show)
            if not is_over(store.runs()):  # the time is up; a later call resumes the search
                print_summary(short.name, store.runs())
                raise SystemExit(0)
            losses: dict[str, dict[int, float]] = {}
            for key, tokens, loss, _ in store.observations():
                losses.setdefault(key, {})[tokens] = loss
        return losses

    law = fit_rates(RateSearch(sweep).run(train))
    law.save(law_path(sweep))
    centre = ", ".join(f"{name} {format_count(value)}" for name, value in law.centre.items())
    say(f"{sweep.name}: {law}" + (f"; centre: {centre}" if centre else ""))
    return read_sweep(sweep.path)
