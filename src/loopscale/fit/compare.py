"""Scores of mappings on held-out rows, and the tables that show them."""

from __future__ import annotations

import io
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from loopscale.architecture import RUNGS, rung
from loopscale.arrays import BoolArray, FloatArray, IntArray
from loopscale.errors import InputError, nearest, shown
from loopscale.fit.data.read import Observations
from loopscale.fit.fitting import choose_form, fit
from loopscale.fit.solver import Progress
from loopscale.laws import MAPPINGS, Counting, mapping, outer_law
from loopscale.quantities import format_count, parse_count
from loopscale.tables import Table

NEAR = 0.01
"""``N=`` and ``D=`` take what lies within 1%: people write three digits of a count."""

_AXES = {"R": "recurrence", "E": "experts", "N": "active", "D": "tokens", "C": "train_flops"}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_SLICE = re.compile(r"\s*([A-Za-z_]+)\s*(>=|<=|==|=|>|<)\s*(.+?)\s*")


@dataclass(frozen=True)
class Slice:
    """The rows of a sweep on one side of a value of R, E, N or D.

    N is the active size as the data count it. Where that selects nothing and the runs are rungs of the ladder
    counted without embeddings, N is read as the rungs' names, which count them: ``N=1.0B`` finds the rung of that
    name, whose active size is 0.755B without embeddings.
    """

    axis: str
    """R, E, N or D."""
    comparison: str
    value: float
    text: str

    @classmethod
    def parse(cls, text: str) -> Slice:
        """Read ``R=16``, ``N>0.9B`` or ``D>400B``."""
        match = _SLICE.fullmatch(text)
        if match is None or match[1] not in _AXES:
            raise InputError(
                f"slice {shown(text)} is not understood; write it like R=16, E=16, N>0.9B, D>400B or C>1e21"
            )
        comparison = match[2].replace("==", "=")
        return cls(match[1], comparison, parse_count(match[3], f"slice {shown(text)}"), "".join(text.split()))

    def rows(self, observations: Observations) -> tuple[BoolArray, str]:
        """Return the mask of the selected rows, and a note where the slice had to be interpreted.

        A slice of nothing or of everything is refused: neither can be held out.
        """
        values = np.asarray(getattr(observations.points, _AXES[self.axis]))
        mask, note = self._holds(values), ""
        if not mask.any() and self.axis == "N" and (named := _rung_sizes(observations)) is not None:
            mask = self._holds(named)
            note = f"{self.text}: N read with embeddings, as the ladder names its rungs; {self._present(observations)}"
        if not mask.any() or mask.all():
            found = "every row" if mask.any() else "no row"
            raise InputError(f"slice {self.text!r} selects {found}; {self._present(observations)}")
        return mask, note

    @property
    def splits_runs(self) -> bool:
        """Whether a run may have rows on both sides: along D and C only."""
        return self.axis in "DC"

    def _holds(self, values: FloatArray) -> BoolArray:
        if self.comparison == "=" and self.axis in "NDC":
            return np.abs(values - self.value) <= NEAR * self.value
        return np.asarray(_COMPARISONS[self.comparison](values, self.value))

    def _present(self, observations: Observations) -> str:
        values = np.unique(getattr(observations.points, _AXES[self.axis]))
        write = format_count if self.axis in "NDC" else "{:g}".format
        listed = ", ".join(map(write, values)) if len(values) <= 12 else f"{write(values[0])} to {write(values[-1])}"
        counted = f" ({observations.counts.value.replace('-', ' ')})" if self.axis == "N" else ""
        return f"{self.axis} in the data{counted}: {listed}"


def suggest_slices(observations: Observations) -> tuple[str, ...]:
    """Return slices worth holding out: the far end of every axis on which the data keep two other values."""
    found = []
    for axis, name in _AXES.items():
        if axis == "C":
            continue
        levels = np.unique(getattr(observations.points, name))
        if len(levels) < 3:
            continue
        between = format_count(float(np.sqrt(levels[-2] * levels[-1])))
        found.append(f"{axis}={levels[-1]:g}" if axis in "RE" else f"{axis}>{between}")
    return tuple(found)


def _rung_sizes(observations: Observations) -> FloatArray | None:
    """Return each row's size as its rung is named, or None unless every row is a rung without embeddings."""
    if observations.counts is not Counting.WITHOUT_EMBEDDINGS:
        return None
    sizes = np.full(len(observations), np.nan)
    for name in RUNGS:
        sizes[np.isclose(observations.points.active, float(rung(name).active), rtol=1e-3)] = parse_count(name)
    return None if np.isnan(sizes).any() else sizes


__all__ = ["CROSS_VALIDATION", "Comparison", "Score", "applicable", "compare", "differences", "table"]

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
    form = outer or choose_form(observations)[0].name
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
            law = fit(observations.where(~mask), outer=outer, mapping=name, resamples=0, **procedure).law
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


@dataclass(frozen=True)
class Score:
    """How well one mapping predicts one held-out slice."""

    slice: str
    mapping: str
    coefficients: int
    """How many were fitted."""
    rows: int
    runs: int
    rmse: float
    """Nats."""
    best: bool
    difference: float
    """RMSE above the best mapping's."""
    low: float | None
    high: float | None
    """The difference's interval over resampled held-out runs, both mappings on the same runs; None for a single run."""
    worse: float
    """Share of those resamples in which it is worse than the best."""


@dataclass(frozen=True)
class Comparison:
    """Held-out errors of several mappings, all fitted by the same procedure to the same rows."""

    source: str
    outer: str
    scores: tuple[Score, ...]
    level: float
    count: int
    notes: tuple[str, ...]

    @property
    def slices(self) -> tuple[str, ...]:
        """The slices, in the order given."""
        return tuple(dict.fromkeys(score.slice for score in self.scores))

    @property
    def mappings(self) -> tuple[str, ...]:
        """The mappings, from the simplest."""
        return tuple(dict.fromkeys(score.mapping for score in self.scores))

    def score(self, part: str, mapping: str) -> Score:
        """Return the score of one mapping on one slice."""
        for each in self.scores:
            if (each.slice, each.mapping) == (part, mapping):
                return each
        raise InputError(f"no score for {part!r} and {mapping!r}; slices: {', '.join(self.slices)}")

    def table(self) -> Table:
        """Return one row per slice and mapping."""
        return Table.from_records([asdict(each) for each in self.scores])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        out = io.StringIO()
        console = Console(file=out, width=160)
        console.print(table(self), differences(self), sep="\n")
        lines = [line.rstrip() for line in out.getvalue().splitlines()]  # rich pads titles with spaces
        return "\n".join([*lines, *self.notes])


def table(comparison: Comparison) -> RichTable:
    """Return the paper's table: a row for each slice, a column for each mapping, the best marked."""
    title, legend = f"Held-out RMSE in nats, {comparison.outer} law", "* lowest   ~ not told apart from it"
    grid = RichTable("held out", title=title, caption=legend, title_justify="left", caption_justify="left")
    grid.add_column("rows (runs)", justify="right")
    for name in comparison.mappings:
        size = comparison.score(comparison.slices[0], name).coefficients
        grid.add_column(f"{name} ({size})", justify="right")
    for part in comparison.slices:
        scores = [comparison.score(part, name) for name in comparison.mappings]
        grid.add_row(
            part, f"{scores[0].rows} ({scores[0].runs})", *(f"{each.rmse:.4f} {_mark(each)}" for each in scores)
        )
    return grid


def differences(comparison: Comparison) -> RichTable:
    """Return how much worse than the best each mapping is, with its interval."""
    title = f"RMSE above the lowest, over {comparison.count} resamples of the held-out runs"
    grid = RichTable("held out", "mapping", title=title, title_justify="left")
    for heading in ("above", f"{comparison.level:.0%} interval", "worse in"):
        grid.add_column(heading, justify="right")
    for each in comparison.scores:
        if not each.best:
            interval = "one run" if each.low is None else f"{each.low:+.4f} to {each.high:+.4f}"
            grid.add_row(each.slice, each.mapping, f"{each.difference:+.4f}", interval, f"{each.worse:.0%}")
    return grid


def _mark(score: Score) -> str:
    if score.best:
        return "*"
    return "~" if score.low is None or score.low <= 0 else " "
