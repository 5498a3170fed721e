"""Read the observations of a sweep: for a fit, as a table, and the point that a fit is judged by.

Commands import this, so what loads torch or fits laws is imported inside functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loopscale.core.errors import InputError, StorageError
from loopscale.sweep.database import FILE
from loopscale.sweep.provenance import foreign_results, version_note
from loopscale.sweep.spec import Sweep
from loopscale.sweep.store import Store

if TYPE_CHECKING:
    from loopscale.core.tables import Table
    from loopscale.fitting import Observations
    from loopscale.scaling import Points

_COUNTS = ("active", "tokens", "recurrence", "experts", "loop", "total")
_BESIDE = ("seed", "width", "layers", "learning_rate", "training_flops", "real_training_flops")
_FACTS = (*_COUNTS, *_BESIDE, "validation_loss")
"""What the database holds of every observation."""
D = "D (raw)"
"""The column of tokens."""
_SHOWN = {"optimizer.learning_rate"}
"""Fields that already have a column."""


def observations(sweep: Sweep, store: Store) -> tuple[Observations, dict[str, list[Any]]]:
    """Return the observations so far, and other columns that are known of each."""
    import numpy as np

    from loopscale.fitting import Observations
    from loopscale.fitting.data.observations import COUNTING
    from loopscale.scaling import Counting, Points

    recorded = {(key, tokens): facts for key, tokens, _, facts in store.observations()}
    foreign = foreign_results(sweep, ((key, tokens, facts) for (key, tokens), facts in recorded.items()))
    rows = [
        (run, tokens, recorded[run.key, tokens])
        for run in sweep.runs
        for tokens in run.points
        if (run.key, tokens) in recorded and (run.key, tokens) not in foreign
    ]
    versions = version_note((run.key, tokens, facts) for run, tokens, facts in rows)
    if not rows and foreign:
        raise InputError(
            f"none of the {len(foreign)} results belongs to the sweep {sweep.name!r}; the first: "
            f"{next(iter(foreign.values()))}",
            where=str(sweep.path),
            remedy="restore the settings in the file, or give the changed sweep another name and folder",
        )
    if not rows:
        raise InputError(
            f"{sweep.path}: no point of the sweep {sweep.name!r} is finished yet; start or continue it with "
            "`loopscale sweep run`"
        )
    for run, tokens, values in rows:
        missing = [name for name in _FACTS if name not in values]
        if missing:
            raise StorageError(
                f"{sweep.results / FILE}: the observation of {run.key} at {tokens} tokens has no {missing[0]!r}; "
                "`loopscale sweep rebuild SWEEP.toml` restores it from the results of the runs"
            )
    facts = {name: [values[name] for _, _, values in rows] for name in _FACTS}
    counts = {name: np.array(facts[name], float) for name in _COUNTS}
    observed = Observations(
        points=Points(**counts),
        loss=np.array(facts["validation_loss"]),
        run=np.array([run.key for run, _, _ in rows]),
        source=f"sweep {sweep.name}",
        counts=Counting.WITHOUT_EMBEDDINGS,
        notes=(*(f"left out: {reason}" for reason in foreign.values()), *([versions] if versions else ())),
        skipped=tuple(foreign.values()),
        finished=np.ones(len(rows), bool),
    )
    beside = {"size": [run.cell.size for run, _, _ in rows], **{name: facts[name] for name in _BESIDE}}
    beside[COUNTING] = [observed.counts.value] * len(rows)
    beside["label"] = [sweep.label(run, run.points[tokens]) for run, tokens, _ in rows]
    return observed, beside


def _on_the_way(sweep: Sweep, records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the validation losses of the trunks of runs, as rows like those of their finished points."""
    from loopscale.sweep.store import run_folder
    from loopscale.train.metrics import read_metrics

    for first in {record["run"]: record for record in reversed(records)}.values():
        metrics = run_folder(sweep.results, str(first["run"])) / "metrics.jsonl"
        for row in read_metrics(metrics) if metrics.is_file() else ():
            if "validation_loss" in row:
                share = row["tokens"] / float(first[D])
                scaled = {name: float(first[name]) * share for name in ("training_flops", "real_training_flops")}
                seen = {D: float(row["tokens"]), "loss": row["validation_loss"], "finished": False}
                yield {**first, **scaled, **seen, "label": ""}


def largest_point(sweep: Sweep, store: Store) -> Points | None:
    """Return the sweep's most expensive point, finished or not, as a law takes it; None while nothing is finished."""
    import numpy as np

    from loopscale.scaling import Points
    from loopscale.sweep.cost import ANY_VOCABULARY, count_without_tokens

    if not any(True for _ in store.observations()):
        return None

    costs = count_without_tokens(sweep, ANY_VOCABULARY)
    assert costs is not None
    most = max(costs, key=lambda cost: cost.alone / sum(cost.run.points) * max(cost.run.points))
    shape, cell = most.model.to_architecture(), most.run.cell
    return Points(
        *(np.array([float(value)]) for value in (shape.active, max(most.run.points), cell.recurrence, cell.experts)),
        *(np.array([float(value)]) for value in (shape.loop, shape.total)),
    )


def table(
    sweep: Sweep, store: Store, *, best: bool = False, intermediate: bool = False
) -> tuple[Table, tuple[str, ...]]:
    """Return the observations under names that ``loopscale fit`` reads, and a sentence for each that is left out.

    ``best`` keeps, of runs that differ only in training fields that are axes of the grid, the one of lowest loss at
    each D. ``intermediate`` adds the validation losses on the way, of runs that have a finished point; their column
    ``finished`` is false, as their learning rate has not decayed.
    """
    from loopscale.core.tables import Table

    observed, beside = observations(sweep, store)
    cells = {run.key: run.cell for run in sweep.runs}
    names = dict.fromkeys(name for cell in cells.values() for name, _ in cell.settings)
    rows = [cells[str(key)] for key in observed.run]
    beside |= {name: [dict(cell.settings).get(name, "") for cell in rows] for name in names if name not in _SHOWN}
    whole = Table({**observed.columns(), **beside})
    if intermediate:
        records = list(whole.records())
        whole = Table.from_records([*records, *_on_the_way(sweep, records)])
    if not best:
        return whole, observed.skipped
    lowest: dict[Any, tuple[float, int]] = {}
    for index, (cell, tokens, loss) in enumerate(zip(rows, observed.points.tokens, observed.loss, strict=True)):
        key = (replace(cell, settings=()), float(tokens))
        lowest[key] = min(lowest.get(key, (float("inf"), -1)), (float(loss), index))
    best_rows = sorted(index for _, index in lowest.values())
    records = list(whole.records())
    return Table.from_records([records[index] for index in best_rows]), observed.skipped
