"""The observations of a sweep, finished or not, for fitting."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopscale.errors import InputError
from loopscale.fit import Observations
from loopscale.laws import Counting, Points
from loopscale.sweep.spec import Sweep
from loopscale.sweep.store import Store
from loopscale.tables import Table

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
