"""Which recurrence mapping predicts what it has not seen: held-out slices and cross-validation by run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loopscale.arrays import BoolArray, FloatArray, IntArray
from loopscale.errors import InputError, nearest, shown
from loopscale.fit.comparison import Comparison, Score, differences, table
from loopscale.fit.fitting import fit
from loopscale.fit.forms import default_outer
from loopscale.fit.observations import Observations
from loopscale.fit.slices import Slice
from loopscale.fit.uncertainty import Progress
from loopscale.laws import MAPPINGS, mapping, outer_law

__all__ = ["CROSS_VALIDATION", "Comparison", "Score", "applicable", "compare", "default_outer", "differences", "table"]

CROSS_VALIDATION = "cross-validation"


def compare(
    observations: Observations,
    slices: Sequence[Slice | str],
    *,
    outer: str | None = None,
    mappings: Sequence[str] | None = None,
    folds: int = 5,
    count: int = 1000,
    level: float = 0.9,
    seed: int = 0,
    progress: Progress | None = None,
    **procedure: Any,
) -> Comparison:
    """Fit every mapping on the rows outside each slice and score it on the rows inside.

    A run with a row in a slice of R, E or N is held out whole; a slice of D holds out rows. Cross-validation over
    ``folds`` of whole runs comes last; 0 leaves it out. ``procedure`` goes to every fit alike; coefficients that it
    holds or bounds concern the mappings that have them. ``progress`` is called with the number of scores done and the
    total.
    """
    form = outer or default_outer(observations)
    names = tuple(mappings) if mappings else applicable(observations)
    parts = [Slice.parse(each) if isinstance(each, str) else each for each in slices]
    tasks, notes = _tasks(observations, parts, folds, seed)
    settings = _settings(form, names, procedure)
    scores: list[Score] = []
    for order, (part, masks) in enumerate(tasks.items()):
        rows_of = []
        for each in names:
            rows_of.append(_errors(observations, masks, form, each, part, settings[each]))
            if progress is not None:
                progress(len(scores) + len(rows_of), len(tasks) * len(names))
        errors = np.stack(rows_of)
        squares, rows = _by_run(observations, errors)
        summary = _paired(squares, rows, count, level, np.random.default_rng([seed, order]))
        sizes = [len(_coefficients(form, each) - set(settings[each].get("fixed", ()))) for each in names]
        scores += [Score(part, name, size, int(rows.sum()), len(rows), *numbers)
                   for name, size, numbers in zip(names, sizes, summary, strict=True)]  # fmt: skip
    return Comparison(observations.source, form, tuple(scores), level, count, notes)


def applicable(observations: Observations) -> tuple[str, ...]:
    """Return the mappings that the data can tell apart: those of m need runs of several m."""
    points = observations.points
    if not np.any(points.recurrence > 1):
        raise InputError(
            f"{observations.source}: every run has R = 1, so all mappings predict the same; "
            "add looped runs, or compare outer laws by their fits"
        )
    sparse = points.total is not None and np.any(points.m < 1)
    return tuple(name for name, each in MAPPINGS.items() if name != "none" and (sparse or not each.needs_ratio))


def _tasks(
    observations: Observations, slices: Sequence[Slice], folds: int, seed: int
) -> tuple[dict[str, list[BoolArray]], tuple[str, ...]]:
    """Return, by name, the masks of rows to hold out in turn."""
    tasks, notes = {}, []
    for part in slices:
        mask, note = part.rows(observations)
        if not part.splits_runs:
            mask = np.isin(observations.run, np.unique(observations.run[mask]))
        tasks[part.text] = [mask]
        notes += [note] if note else []
    if folds:
        tasks[CROSS_VALIDATION] = _folds(observations, folds, seed)
    if not tasks:
        raise InputError("nothing to hold out; give a slice like R=16, or folds for cross-validation")
    return tasks, tuple(notes)


def _folds(observations: Observations, folds: int, seed: int) -> list[BoolArray]:
    runs = observations.runs
    if not 2 <= folds <= len(runs):
        raise InputError(f"folds is {folds}; with {len(runs)} runs it should be from 2 to {len(runs)}, or 0 for none")
    order = np.random.default_rng(seed).permutation(len(runs))
    return [np.isin(observations.run, runs[order[first::folds]]) for first in range(folds)]


def _errors(
    observations: Observations, masks: Sequence[BoolArray], outer: str, name: str, part: str, procedure: dict[str, Any]
) -> FloatArray:
    """Return predicted minus observed loss on the held-out rows; NaN on the others."""
    errors = np.full(len(observations), np.nan)
    for mask in masks:
        try:
            law = fit(observations.where(~mask), outer=outer, mapping=name, **procedure).law
        except InputError as error:
            raise InputError(f"without {part}, {name}: {error}") from None
        held_out = observations.where(mask)
        errors[mask] = law(held_out.points) - held_out.loss
    return errors


def _by_run(observations: Observations, errors: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return each held-out run's sum of squares under each mapping, and its number of rows."""
    kept = ~np.isnan(errors[0])
    _, run = np.unique(observations.run[kept], return_inverse=True)
    squares = np.array([np.bincount(run, each[kept] ** 2) for each in errors], dtype=np.float64)
    return squares, np.bincount(run).astype(np.int64)


def _paired(
    squares: FloatArray, rows: IntArray, count: int, level: float, random: np.random.Generator
) -> list[tuple[float, bool, float, float | None, float | None, float]]:
    """Return for each mapping: RMSE, best or not, and its difference from the best with interval and share above."""
    rmse = np.sqrt(squares.sum(axis=1) / rows.sum())
    best = int(np.argmin(rmse))
    drawn = random.integers(len(rows), size=(count, len(rows)))
    again = np.sqrt(squares[:, drawn].sum(axis=-1) / rows[drawn].sum(axis=-1))
    above = again - again[best]
    tails = [50 * (1 - level), 50 * (1 + level)]
    low, high = np.percentile(above, tails, axis=1).tolist() if len(rows) > 1 else [[None] * len(rmse)] * 2
    numbers = (rmse, np.arange(len(rmse)) == best, rmse - rmse[best], (above > 0).mean(axis=1))
    score, is_best, difference, worse = (column.tolist() for column in numbers)
    return list(zip(score, is_best, difference, low, high, worse, strict=True))


def _coefficients(outer: str, name: str) -> set[str]:
    return {term.name for term in outer_law(outer).coefficients + mapping(name).coefficients}


def _settings(outer: str, names: Sequence[str], procedure: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each mapping's fit options: a held or bounded coefficient concerns the mappings that have it."""
    known = set().union(*(_coefficients(outer, name) for name in names))
    given = {option: dict(procedure[option]) for option in ("fixed", "bounds") if option in procedure}
    for option, values in given.items():
        for each in values:
            if each not in known:
                raise InputError(f"{option}: coefficient {shown(each)} is unknown{nearest(each, known)}")
    return {
        name: procedure
        | {option: {each: values[each] for each in values if each in _coefficients(outer, name)}
           for option, values in given.items()}
        for name in names
    }  # fmt: skip
