"""From a file to workers: everything that can be wrong is checked first, then the store is brought up to date."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np

from loopscale.errors import InputError
from loopscale.fit import Observations
from loopscale.laws import Counting, Points
from loopscale.sweep.cost import Cost, as_measured, check_cells, count, open_tokens
from loopscale.sweep.spec import Run, Sweep, read_sweep
from loopscale.sweep.store import RunState, Store, run_folder, transaction
from loopscale.sweep.worker import executed_steps
from loopscale.tables import Table
from loopscale.train.config import TrainConfig
from loopscale.train.run_dir import FREE

_FREE = FREE - {"validation_sequences"}
"""What may change between two calls: how long a run is and what it reports, but not what is measured."""


def update(store: Store, sweep: Sweep, costs: Mapping[str, float]) -> None:
    """Make the store's runs those of the file; refuse what would mix two sweeps."""
    before = {run.key: run for run in store.runs()}
    with transaction(store.database()):
        _check_name(store, sweep)
        stored = {row["key"]: row["config"] for row in store.database().execute("SELECT key, config FROM runs")}
        store.database().execute("UPDATE runs SET wanted = 0")
        for place, run in enumerate(sweep.runs):
            if run.key not in stored:
                _insert(store, run, place, costs[run.key])
                continue
            changed = _difference(json.loads(stored[run.key]), run.config.to_dict())
            if changed:
                _begin_anew(store, sweep, run, before.get(run.key), changed)
            _renew(store, run, place, costs[run.key])


def _check_name(store: Store, sweep: Sweep) -> None:
    """One folder holds one sweep: that of one name, from one file."""
    for fact, found in (("name", sweep.name), ("file", sweep.path.name)):
        kept = store.fact(fact)
        if kept is None:
            store.set_fact(fact, found)
        elif kept != found:
            raise InputError(
                f"{sweep.path}: {sweep.results} holds the sweep of the {fact} {kept!r}, and this one's is {found!r}; "
                "give this sweep another name and folder"
            )


def _insert(store: Store, run: Run, place: int, cost: float) -> None:
    store.database().execute(
        "INSERT INTO runs (key, place, wanted, config, points, cost, state, steps) VALUES (?, ?, 1, ?, ?, ?, ?, ?)",
        (run.key, place, *_written(run), cost, "waiting", executed_steps(run.config, run.points)),
    )


def _renew(store: Store, run: Run, place: int, cost: float) -> None:
    """Put in what the file says now; a finished run with a new point waits again."""
    database = store.database()
    done = {row["tokens"] for row in database.execute("SELECT tokens FROM observations WHERE run = ?", (run.key,))}
    finished = done >= set(run.points)
    database.execute(
        "UPDATE runs SET wanted = 1, place = ?, config = ?, points = ?, cost = ?, steps = ?, "
        "state = CASE WHEN state = 'done' AND NOT ? THEN 'waiting' WHEN state = 'waiting' AND ? THEN 'done' "
        "ELSE state END WHERE key = ?",
        (place, *_written(run), cost, executed_steps(run.config, run.points), finished, finished, run.key),
    )


def _begin_anew(store: Store, sweep: Sweep, run: Run, before: RunState | None, changed: str) -> None:
    """Let a run that has shown nothing yet be another; one that has is kept as it is."""
    (count,) = store.database().execute("SELECT count(*) FROM observations WHERE run = ?", (run.key,)).fetchone()
    if count or (before is not None and before.state == "running" and not before.stale):
        what = "has observations" if count else "is at work"
        raise InputError(
            f"{sweep.path}: run {run.key} of {sweep.results} {what}, and {changed}; "
            "give the changed sweep another name and folder"
        )
    shutil.rmtree(run_folder(sweep.results, run.key), ignore_errors=True)
    store.database().execute(
        "UPDATE runs SET state = 'waiting', error = NULL, claim = NULL, deaths = 0, steps_done = 0, seconds = 0 "
        "WHERE key = ?",
        (run.key,),
    )


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """Return the first setting in which two runs differ, in words."""
    for section, values in wanted.items():
        before = found.get(section)
        if section == "parallel" or not isinstance(values, dict) or not isinstance(before, dict):
            continue
        for name in {**before, **values}:
            if section == "run" and name in _FREE:
                continue
            if before.get(name) != values.get(name):
                return f"its [{section}] {name} was {before.get(name)!r} and is {values.get(name)!r} now"
    return None


def _written(run: Run) -> tuple[str, str]:
    config: TrainConfig = run.config
    return json.dumps(config.to_dict()), json.dumps(run.points)


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


_BESIDE = ("seed", "width", "layers", "learning_rate", "training_flops", "real_training_flops")


def observations(sweep: Sweep, store: Store) -> tuple[Observations, dict[str, list[Any]]]:
    """Return what the sweep has seen so far, and what else is known of each row, by column."""
    runs = {run.key: run for run in sweep.runs}
    found = {(key, tokens): facts for key, tokens, _, facts in store.observations()}
    rows = [
        (run, tokens, found[key, tokens])
        for key, run in runs.items()
        for tokens in run.points
        if (key, tokens) in found
    ]
    if not rows:
        raise InputError(f"{sweep.path}: no point of the sweep {sweep.name!r} is finished yet")
    facts = {name: [each[name] for _, _, each in rows] for name in rows[0][2]}
    counted = {
        name: np.array(facts[name], float) for name in ("active", "tokens", "recurrence", "experts", "loop", "total")
    }
    seen = Observations(
        points=Points(**counted),
        loss=np.array(facts["validation_loss"]),
        run=np.array([run.key for run, _, _ in rows]),
        source=f"sweep {sweep.name}",
        counts=Counting.WITHOUT_EMBEDDINGS,
        finished=np.ones(len(rows), bool),
    )
    beside = {"size": [run.cell.size for run, _, _ in rows], **{name: facts[name] for name in _BESIDE}}
    beside["label"] = [sweep.label(run, run.points[tokens]) for run, tokens, _ in rows]
    return seen, beside


def table(sweep: Sweep, store: Store) -> Table:
    """Return the observations under names that ``loopscale fit`` reads, with all that is known beside them."""
    seen, beside = observations(sweep, store)
    return Table({**seen.columns(), **beside})
