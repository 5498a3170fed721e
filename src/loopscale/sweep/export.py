"""The observations of a sweep as a table: what a law is fitted to."""

from __future__ import annotations

from dataclasses import replace
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
    """Return the observations so far, and other columns that are known of each."""
    recorded = {(key, tokens): facts for key, tokens, _, facts in store.observations()}
    rows = [
        (run, tokens, recorded[run.key, tokens])
        for run in sweep.runs
        for tokens in run.points
        if (run.key, tokens) in recorded
    ]
    if not rows:
        raise InputError(f"{sweep.path}: no point of the sweep {sweep.name!r} is finished yet")
    facts = {name: [values[name] for _, _, values in rows] for name in rows[0][2] if name in rows[-1][2]}
    counts = {
        name: np.array(facts[name], float) for name in ("active", "tokens", "recurrence", "experts", "loop", "total")
    }
    observed = Observations(
        points=Points(**counts),
        loss=np.array(facts["validation_loss"]),
        run=np.array([run.key for run, _, _ in rows]),
        source=f"sweep {sweep.name}",
        counts=Counting.WITHOUT_EMBEDDINGS,
        finished=np.ones(len(rows), bool),
    )
    beside = {"size": [run.cell.size for run, _, _ in rows], **{name: facts[name] for name in _BESIDE}}
    beside["label"] = [sweep.label(run, run.points[tokens]) for run, tokens, _ in rows]
    return observed, beside


def largest_point(sweep: Sweep, store: Store) -> Points | None:
    """Return the sweep's most expensive point, finished or not, as a law takes it; None while nothing is finished."""
    if not any(True for _ in store.observations()):
        return None
    from loopscale.sweep.cost import count_without_tokens  # loads torch

    costs = count_without_tokens(sweep, vocabulary=264)
    assert costs is not None
    most = max(costs, key=lambda cost: cost.alone / sum(cost.run.points) * max(cost.run.points))
    shape, cell = most.model.to_architecture(), most.run.cell
    return Points(
        *(np.array([float(value)]) for value in (shape.active, max(most.run.points), cell.recurrence, cell.experts)),
        *(np.array([float(value)]) for value in (shape.loop, shape.total)),
    )


def table(sweep: Sweep, store: Store, *, best: bool = False) -> Table:
    """Return the observations under names that ``loopscale fit`` reads, with the other columns beside them.

    ``best`` keeps, of runs that differ only in training fields that are axes of the grid, the one of lowest loss at
    each D.
    """
    observed, beside = observations(sweep, store)
    cells = {run.key: run.cell for run in sweep.runs}
    names = dict.fromkeys(name for cell in cells.values() for name, _ in cell.settings)
    rows = [cells[str(key)] for key in observed.run]
    beside |= {name: [dict(cell.settings).get(name, "") for cell in rows] for name in names if name not in _SHOWN}
    whole = Table({**observed.columns(), **beside})
    if not best:
        return whole
    lowest: dict[Any, tuple[float, int]] = {}
    for index, (cell, tokens, loss) in enumerate(zip(rows, observed.points.tokens, observed.loss, strict=True)):
        key = (replace(cell, settings=()), float(tokens))
        lowest[key] = min(lowest.get(key, (float("inf"), -1)), (float(loss), index))
    kept = sorted(index for _, index in lowest.values())
    records = list(whole.records())
    return Table.from_records([records[index] for index in kept])


_SHOWN = {"optimizer.learning_rate"}
"""Fields that have a column of their own already."""
