"""Rows as runs: which repeat another, which run each belongs to, which are final, and how much each counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.core.quantities import counted
from loopscale.fitting.data.cell_checks import check
from loopscale.fitting.data.cells import crashed_flags, finished_flags, texts
from loopscale.fitting.data.columns import EXIT_CODES, LOOSE_RUNS, normal_name
from loopscale.scaling import Points

if TYPE_CHECKING:
    from loopscale.fitting.data.reader import TableReader

CHECKPOINTS = 10
"""Rows for each model from which they count as checkpoints of one run where no column names runs."""


def models(points: Points) -> IntArray:
    """Return a number for the model of each row: rows that agree on everything but tokens share it."""
    counts = (points.active, points.recurrence, points.experts, points.loop, points.total)
    table = np.stack([values for values in counts if values is not None], axis=1)
    return np.asarray(np.unique(table, axis=0, return_inverse=True)[1].reshape(-1), dtype=np.int64)


def crashed(reader: TableReader) -> BoolArray:
    """Tell which rows are of runs that a tracker calls crashed, failed or killed: their last loss is no result."""
    none = np.zeros(len(reader.table), dtype=bool)
    if "finished" not in reader.columns:
        return none
    crashed = crashed_flags(reader.table.columns[reader.columns["finished"].name])
    if crashed.all():
        return none
    if crashed.any():
        reader.notes.append(f"{counted(int(crashed.sum()), 'row')} skipped: crashed, {reader.places(crashed)}")
        reader.skipped.append(f"{int(crashed.sum())} crashed skipped")
    return crashed


def distinct(reader: TableReader, points: Points, loss: FloatArray) -> IntArray:
    """Return the rows without exact repeats of another, and say how many repeats there were."""
    named = texts(reader.table.columns[reader.columns["run"].name]) if "run" in reader.columns else [""] * len(loss)
    keys = zip(named, models(points).tolist(), points.tokens.tolist(), points.unique.tolist(), loss.tolist(),
               strict=True)  # fmt: skip
    first: dict[Any, int] = {}
    for k, key in enumerate(keys):
        first.setdefault(key, k)
    if repeats := len(loss) - len(first):
        reader.notes.append(f"{counted(repeats, 'duplicate row')} ignored")
        reader.skipped.append(f"{counted(repeats, 'duplicate')} ignored")
    return np.array(list(first.values()), dtype=np.int64)


def run_names(reader: TableReader, points: Points) -> NDArray[np.str_]:
    """Return the run of each row: as named; else checkpoints of one model are a run, and other rows one each."""
    model = models(points)
    if "run" in reader.columns:
        column = reader.columns["run"].name
        names = texts(reader.table.columns[column])
        if normal_name(column) not in LOOSE_RUNS or _names_runs(names, model, points.tokens):
            if len(set(zip(names.tolist(), model.tolist(), strict=True))) > len(np.unique(names)):
                reader.notes.append("some runs hold rows of different models; each counts as one run")
            reader.named_runs = True
            return names
        reader.notes.append(f"`{column}` has duplicates, so it was not used as the run id")
        del reader.columns["run"]
    rows_each = np.bincount(model)
    if len(rows_each) < len(model) and ("step" in reader.columns or np.median(rows_each) >= CHECKPOINTS):
        reader.notes.append(
            f"no run column: the rows of one model count as checkpoints of one run ({len(rows_each)} runs)"
        )
        return np.array([f"run {k + 1}" for k in model])
    if len(rows_each) < len(model):
        reader.notes.append("no run column: every row counts as a separate run")
    return np.array([f"run {k + 1}" for k in range(len(model))])


def finished(reader: TableReader) -> BoolArray | None:
    """Tell which rows are final losses, where a column says so."""
    if "finished" not in reader.columns:
        return None
    column = reader.columns["finished"].name
    flags = finished_flags(reader.table.columns[column], exit_codes=normal_name(column) in EXIT_CODES)
    if not flags.all():
        reader.notes.append(f"{int((~flags).sum())} of {len(flags)} rows are not final losses of their run")
    return flags


def weight(reader: TableReader) -> FloatArray | None:
    """Return how much each row counts: as stated, or by the stated noise of its loss; 1 on average."""
    if "weight" in reader.columns:
        check(reader, "weight")
        values = reader.values["weight"]
    elif "noise" in reader.columns:
        check(reader, "noise")
        values = reader.values["noise"] ** -2.0
        reader.notes.append(f"rows are weighted by {reader.columns['noise'].name}")
    else:
        return None
    return np.asarray(values / values.mean())


def _names_runs(names: NDArray[np.str_], model: IntArray, tokens: FloatArray) -> bool:
    """Tell whether each name belongs to one model, seen at most once at each token count."""
    pairs = set(zip(names.tolist(), model.tolist(), strict=True))
    rows = set(zip(names.tolist(), tokens.tolist(), strict=True))
    return len(pairs) == len(set(names.tolist())) and len(rows) == len(names)
