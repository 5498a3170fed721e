"""Bring a sweep's store in line with its file: add and update runs, and rebuild a lost database.

The command that supervises a sweep imports this, so what loads torch or fits laws is imported inside functions.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loopscale.core.errors import InputError, LoopscaleError
from loopscale.sweep.database import FILE, set_aside
from loopscale.sweep.objects import fetch_points
from loopscale.sweep.provenance import foreign_results
from loopscale.sweep.spec import Run, Sweep, executed_steps
from loopscale.sweep.store import RunState, Store, run_folder
from loopscale.train.config import TrainConfig
from loopscale.train.identity import first_difference
from loopscale.train.run_dir import read_summary, stored_config


def update(store: Store, sweep: Sweep, costs: Mapping[str, float]) -> None:
    """Make the store's runs those of the file; refuse what would mix two sweeps."""
    before = {run.key: run for run in store.runs()}
    with store.transaction():
        _check_name(store, sweep)
        store.drop_all()
        for position, run in enumerate(sweep.runs):
            stored = store.config(run.key)
            difference = None if stored is None else _difference(TrainConfig.from_dict(stored), run.config)
            if difference:
                _start_anew(store, sweep, run, before.get(run.key), difference)
            store.put(
                run.key,
                position=position,
                config=run.config.to_dict(),
                points=run.points,
                cost=costs[run.key],
                steps=executed_steps(run.config, run.points),
                resources=run.resources,
                cell=asdict(run.cell),
            )


def _check_name(store: Store, sweep: Sweep) -> None:
    """One folder holds one sweep, of one name and from one file."""
    for fact, current in (("name", sweep.name), ("file", sweep.path.name)):
        stored = store.fact(fact)
        if stored is None:
            store.set_fact(fact, current)
        elif stored != current:
            raise InputError(
                f"{sweep.path}: {sweep.results} holds the sweep of the {fact} {stored!r}, and this one's is "
                f"{current!r}; give this sweep another name and folder"
            )


def _start_anew(store: Store, sweep: Sweep, run: Run, before: RunState | None, difference: str) -> None:
    """Let a run without observations start with its new settings; refuse to change one that has some."""
    observed = bool(store.observed(run.key))
    if observed or (before is not None and before.state == "running" and not before.stale):
        what = "has observations" if observed else "is being trained"
        raise InputError(
            f"{sweep.path}: run {run.key} of {sweep.results} {what}, and {difference}; "
            "give the changed sweep another name and folder"
        )
    shutil.rmtree(run_folder(sweep.results, run.key), ignore_errors=True)
    store.reset(run.key)


def _difference(stored: TrainConfig, current: TrainConfig) -> str | None:
    """Return a phrase about the first setting in which two runs differ."""
    first = first_difference(stored, current, measured_alike=True)
    if first is None:
        return None
    return f"its [{first.section}] {first.name} was {first.stored!r} and is {first.wanted!r} now"


def prepared(sweep: Sweep, progress: bool) -> dict[str, float]:
    """Check every cell, prepare the tokens, and return the cost of each run; needs torch."""
    from loopscale.sweep.cost import checked, times_or_flops

    return times_or_flops(sweep, checked(sweep, progress=progress))


def opened(sweep: Sweep, costs: Mapping[str, float]) -> Store:
    """Return the sweep's store with the runs of its file in it."""
    store = Store(sweep.results, make=True)
    update(store, sweep, costs)
    return store


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuilt database holds."""

    observations: int
    skipped: tuple[str, ...]
    """Results that were left out, each with the reason."""
    old: Path | None
    """Where the old database is."""


def rebuild(sweep: Sweep) -> Rebuilt:
    """Make the database anew from the summaries in the runs' folders; the old one is kept under another name.

    No text is read: costs are counted for any vocabulary, and the next `sweep run` counts them again.
    """
    from loopscale.sweep.cost import ANY_VOCABULARY, check_cells, count_without_tokens

    _refuse_active(sweep)
    check_cells(sweep)
    costs = {cost.run.key: cost.real for cost in count_without_tokens(sweep, ANY_VOCABULARY) or ()}
    if sweep.objects is not None:
        fetch_points(sweep.results, sweep.objects)
    if not (sweep.results / "runs").is_dir():
        raise InputError(
            f"{sweep.results}: there are no results of the sweep {sweep.name!r} to restore a database from; start "
            "it with `loopscale sweep run`"
        )
    old = set_aside(sweep.results)
    results, skipped = _summaries(sweep)
    with Store(sweep.results, make=True, rebuild=True) as store:
        update(store, sweep, costs)
        for key, tokens, summary in results:
            store.restore(key, tokens, summary["validation_loss"], summary)
        update(store, sweep, costs)
    return Rebuilt(len(results), tuple(skipped), old)


def _refuse_active(sweep: Sweep) -> None:
    """Refuse to replace a database that living workers use; one that cannot be read has none that we can know of."""
    if not (sweep.results / FILE).is_file():
        return
    try:
        with Store(sweep.results) as store:
            active = [run for run in store.runs() if run.state == "running" and not run.stale]
    except LoopscaleError:
        return
    if active:
        raise InputError(f"{sweep.path}: run {active[0].key} is being trained by {active[0].worker}; stop it first")


def _summaries(sweep: Sweep) -> tuple[list[tuple[str, int, dict[str, Any]]], list[str]]:
    """Return the results in the runs' folders that belong to the sweep as its file is now, and those that do not."""
    results, skipped = [], []
    for run in sweep.runs:
        folder = run_folder(sweep.results, run.key)
        for tokens in run.points:
            point = folder / f"D{tokens}"
            try:
                config, summary = stored_config(point), read_summary(point)
                if config is None or summary is None:
                    continue
                difference = _difference(config, run.config)
            except LoopscaleError as error:
                skipped.append(str(error))
                continue
            if difference or summary["tokens"] != tokens:
                skipped.append(f"{point}: {difference or 'its summary is of another length'}")
            else:
                results.append((run.key, tokens, summary))
    foreign = foreign_results(sweep, results)
    return [result for result in results if result[:2] not in foreign], [*skipped, *foreign.values()]
