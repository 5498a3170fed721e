"""``loopscale sweep watch``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from loopscale.cli.params import WHOLE
from loopscale.cli.sweep.progress import FILE, is_over
from loopscale.cli.verbs import verb
from loopscale.core.errors import LoopscaleError
from loopscale.core.quantities import counted

if TYPE_CHECKING:
    from loopscale.fitting import Observations
    from loopscale.scaling import Points

EVERY = 30.0
"""Seconds between checks."""


@verb("watch", short_help="Fit the law again whenever points arrive.")
@FILE
@click.option("--once", is_flag=True, help="Fit what is there now, print one line and return.")
@click.option("--resamples", type=WHOLE, default=40, show_default=True, help="Resampled laws behind the interval.")
def watch(file: str, once: bool, resamples: int) -> None:
    """Fit the law again whenever points arrive, and show how its uncertainty shrinks.

    Each line gives the error of the fit and the predicted loss of the sweep's largest run with its 90% interval.
    `loopscale fit` explains the warnings that it counts.

    \b
    loopscale sweep watch sweep.toml
    """
    from time import sleep

    from loopscale.sweep.export import largest_point, observations
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.store import Store

    sweep = read_sweep(file)
    seen = -1
    with Store(sweep.results) as store:
        while True:
            over, recorded = is_over(store.runs()), sum(1 for _ in store.observations())
            if recorded != seen:
                seen = recorded
                click.echo(_watch_line(lambda: observations(sweep, store)[0], largest_point(sweep, store), resamples))
            if over or once:
                return
            sleep(EVERY)


def _watch_line(read: Callable[[], Observations], target: Points | None, resamples: int) -> str:
    """Return a line about the law that the observations so far give, or why they give none."""
    from loopscale.fitting import fit

    try:
        data = read()
        law = fit(data, resamples=resamples)
    except LoopscaleError as error:
        return f"no law yet: {error}"
    line = f"{len(data)} observations, RMSE {law.law.rmse or 0:.4f}"
    if target is not None:
        predicted = law.predict_points(target)
        low, high = float(predicted.low.item()), float(predicted.high.item())
        line += f", largest run {float(predicted.value.item()):.4f} ({low:.4f} to {high:.4f})"
    return line + (f", {counted(len(law.warnings), 'warning')}" if law.warnings else "")
