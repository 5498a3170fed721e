"""From a file to workers: everything that can be wrong is checked first, then the store is brought up to date."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path

from loopscale.sweep.calibration import as_measured
from loopscale.sweep.cost import Cost, check_cells, count, open_tokens
from loopscale.sweep.spec import Sweep, read_sweep
from loopscale.sweep.store import Store
from loopscale.sweep.sync import update


def checked(path: str | Path, *, progress: bool) -> tuple[Sweep, list[Cost]]:
    """Read a sweep, check every cell, make its tokens, and count what it costs."""
    sweep = read_sweep(path)
    check_cells(sweep)
    with chdir(sweep.root):
        return sweep, count(sweep, open_tokens(sweep, progress))


def opened(sweep: Sweep, costs: list[Cost]) -> Store:
    """Return the sweep's store with the runs of its file in it."""
    with chdir(sweep.root):
        seconds = as_measured(costs, now=False) or [cost.real for cost in costs]
    store = Store(sweep.results, make=True)
    update(store, sweep, {cost.run.key: each for cost, each in zip(costs, seconds, strict=True)})
    return store
