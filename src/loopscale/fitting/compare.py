"""Scores of recurrence mappings or outer laws on held-out rows, and the tables that show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.quantities import counted
from loopscale.core.tables import Table
from loopscale.core.text import WIDTH, text_table, warning
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.estimate import choose_form, fit
from loopscale.fitting.resample import Progress
from loopscale.fitting.slices import Slice
from loopscale.fitting.warnings import FitWarning, diverged_warning
from loopscale.scaling import MAPPINGS, OUTER_LAWS, Form, mapping, outer_law, tails

CROSS_VALIDATION = "cross-validation"
SEVERAL = "several"
"""The outer law of a comparison that compares outer laws."""
COVERAGE_RESAMPLES = 40
"""Refits behind the coverage of a comparison; only forms with few coefficients are refitted."""
FEW_COEFFICIENTS = 9


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
    """Fit every form on the rows outside each slice and score it on the rows inside.

    Forms are recurrence mappings where the data have loops, and outer laws where they have none. The null is always
    among them: no gain from looping, or no effect of experts. Rows of diverged runs are not scored.

    A run with a row in a slice of R, E or N is held out whole; a slice of D holds out rows. Cross-validation over
    ``folds`` of whole runs comes last; 0 leaves it out. ``procedure`` goes to every fit alike; coefficients that it
    holds or bounds concern the mappings that have them. ``progress`` is called with the number of scores done and the
    total.
    """
    forms = _forms(observations, outer, mappings)
    names = tuple(forms)
    parts = [Slice.parse(part) if isinstance(part, str) else part for part in slices]
    tasks, notes = _tasks(observations, parts, folds, seed)
    settings = _settings(forms, procedure)
    sound, warnings = _sound(observations, forms, settings)
    scores, degenerate = list[SliceScore](), dict[str, None]()
    for order, (part, masks) in enumerate(tasks.items()):
        results = []
        for name in names:
            results.append(_held_out(observations, masks, sound, forms[name], part, settings[name]))
            if progress is not None:
                progress(len(scores) + len(results), len(tasks) * len(names))
        errors = np.stack([result.errors for result in results])
        squares, rows = _by_run(observations, errors)
        paired = _paired(squares, rows, count, level, np.random.default_rng([seed, order]))
        relative = np.nanmean(np.abs(errors / observations.loss), axis=1).tolist()
        for k, name in enumerate(names):
            size = len(set(forms[name].names) - {*settings[name].get("fixed", ()), *settings[name].get("tie", ())})
            scores.append(
                SliceScore(
                    slice=part, mapping=name, coefficients=size, rows=int(rows.sum()), runs=len(rows), **paired[k],
                    relative_error=relative[k], coverage=results[k].coverage,
                )
            )  # fmt: skip
        degenerate |= dict.fromkeys(
            f"{name} ({part})" for name, each in zip(names, results, strict=True) if each.degenerate
        )
    if degenerate:
        warnings.append(FitWarning(f"degenerate without the held-out rows: {', '.join(degenerate)}"))
    outers = {form.outer.name for form in forms.values()}
    shared = outers.pop() if len(outers) == 1 else SEVERAL
    return Comparison(observations.source, shared, tuple(scores), level, count, notes, tuple(warnings))


def _forms(observations: Observations, outer: str | None, mappings: Sequence[str] | None) -> dict[str, Form]:
    """Return the forms to compare by name: recurrence mappings on looped data, outer laws on data without loops.

    The null is the first of the mappings, and the last of the outer laws.
    """
    if mappings or np.any(observations.points.recurrence > 1):
        law, _ = choose_form(observations, outer)
        names = dict.fromkeys(("none", *mappings)) if mappings else applicable(observations)
        return {name: Form(law, mapping(name)) for name in names}
    default = choose_form(observations)[0].name
    if outer is not None:
        laws = [default, outer]
    else:
        experts = bool(np.any(observations.points.experts > 1))
        alike = [law.name for law in OUTER_LAWS.values() if law.uses_tokens and law.uses_experts == experts
                 and (not law.uses_unique or observations.points.unique_tokens is not None)]  # fmt: skip
        laws = [default, *alike, *(["chinchilla"] if experts else [])]
    return {name: Form(outer_law(name), mapping("none")) for name in dict.fromkeys(laws)}


def applicable(observations: Observations) -> tuple[str, ...]:
    """Return the mappings that the data can distinguish, "none" among them: those of m need runs of several m.

    On sparse models the general mappings are compared only when they are asked for: few sweeps determine the shape of
    the curve and its change with sparsity at once.
    """
    points = observations.points
    if not np.any(points.recurrence > 1):
        raise InputError("every run has R = 1, so all mappings predict the same", where=observations.source)
    sparse = points.total is not None and np.any(points.m < 1)
    general = {name for name, form in MAPPINGS.items() if any(term.prior for term in form.coefficients)}
    left_out = general if sparse else {name for name, form in MAPPINGS.items() if form.needs_ratio}
    return tuple(name for name in MAPPINGS if name not in left_out)


def _tasks(
    observations: Observations, slices: Sequence[Slice], folds: int, seed: int
) -> tuple[dict[str, list[BoolArray]], tuple[str, ...]]:
    """Return, by name, the masks of rows to hold out in turn."""
    tasks, notes = {}, []
    for part in slices:
        mask, note = part.held_out(observations)
        tasks[part.text] = [mask]
        notes += [note] if note else []
    if folds:
        tasks[CROSS_VALIDATION] = _folds(observations, folds, seed)
    if not tasks:
        raise InputError("nothing to hold out", remedy="give a slice like R=16, or `folds` for cross-validation")
    return tasks, tuple(notes)


def _folds(observations: Observations, folds: int, seed: int) -> list[BoolArray]:
    runs = observations.runs
    if not 2 <= folds <= len(runs):
        raise InputError(
            f"`folds` is {folds}", remedy=f"with {len(runs)} runs it should be from 2 to {len(runs)}, or 0"
        )
    order = np.random.default_rng(seed).permutation(len(runs))
    return [np.isin(observations.run, runs[order[first::folds]]) for first in range(folds)]


def _sound(
    observations: Observations, forms: dict[str, Form], settings: dict[str, dict[str, Any]]
) -> tuple[BoolArray, list[FitWarning]]:
    """Return which rows are not of diverged runs by the richest form on all rows, and the warning about the others."""
    name, form = max(forms.items(), key=lambda item: len(item[1].names))
    try:
        result = fit(observations, outer=form.outer, mapping=form.mapping, resamples=0, **settings[name])
    except InputError as error:
        raise error.within(name) from None
    warning = diverged_warning(result, "the scores")
    return result.sound, [] if warning is None else [warning]


class HeldOut(NamedTuple):
    """How one form predicts the rows of one slice."""

    errors: FloatArray
    """Predicted minus observed loss; NaN on rows that are not scored."""
    coverage: float | None
    """Share of the scored losses inside their predictive interval; None where there is none."""
    degenerate: bool
    """Whether a fit behind it was degenerate."""


def _held_out(
    observations: Observations, masks: Sequence[BoolArray], sound: BoolArray, form: Form, part: str,
    procedure: dict[str, Any],
) -> HeldOut:  # fmt: skip
    """Fit a form without the rows of each mask in turn, and predict those that are sound."""
    errors, inside, degenerate = np.full(len(observations), np.nan), list[BoolArray](), False
    resamples = COVERAGE_RESAMPLES if len(form.names) <= FEW_COEFFICIENTS else 0
    for mask in masks:
        try:
            result = fit(
                observations.where(~mask), outer=form.outer, mapping=form.mapping, resamples=resamples, **procedure
            )  # fmt: skip
        except InputError as error:
            varied = form.mapping if form.mapping.loops else form.outer
            raise error.within(f"without {part}, {varied.name}") from None
        degenerate |= bool(result.degenerate)
        scored = observations.where(mask & sound)
        errors[mask & sound] = result.law(scored.points) - scored.loss
        if resamples:
            low, high = result.law.predictive_interval(scored.points)
            inside.append((low <= scored.loss) & (scored.loss <= high))
    if np.isnan(errors).all():
        raise InputError(f"every run in {part} looks diverged", where=observations.source)
    return HeldOut(errors, float(np.mean(np.concatenate(inside))) if inside else None, degenerate)


def _by_run(observations: Observations, errors: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return each held-out run's sum of squares under each mapping, and its number of rows."""
    scored = ~np.isnan(errors[0])
    _, run = np.unique(observations.run[scored], return_inverse=True)
    squares = np.array([np.bincount(run, error[scored] ** 2) for error in errors], dtype=np.float64)
    return squares, np.bincount(run).astype(np.int64)


def _paired(
    squares: FloatArray, rows: IntArray, count: int, level: float, random: np.random.Generator
) -> list[dict[str, Any]]:
    """Return for each form, as fields of its score, the RMSE and how far it lies above the best."""
    rmse = np.sqrt(squares.sum(axis=1) / rows.sum())
    best = int(np.argmin(rmse))
    drawn = random.integers(len(rows), size=(count, len(rows)))
    again = np.sqrt(squares[:, drawn].sum(axis=-1) / rows[drawn].sum(axis=-1))
    above = again - again[best]
    low, high = np.quantile(above, tails(level), axis=1).tolist() if len(rows) > 1 else [[None] * len(rmse)] * 2
    fields = {
        "rmse": rmse.tolist(), "best": (np.arange(len(rmse)) == best).tolist(),
        "difference": (rmse - rmse[best]).tolist(), "low": low, "high": high,
        "worse": (above > 0).mean(axis=1).tolist(),
    }  # fmt: skip
    return [dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True)]


def _settings(forms: dict[str, Form], procedure: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each form's fit options: a held, tied or bounded coefficient concerns the forms that have it."""
    names = {name for form in forms.values() for name in form.names}
    stated = {option: dict(procedure[option]) for option in ("fixed", "bounds", "tie") if option in procedure}
    for option, values in stated.items():
        for coefficient in values:
            if coefficient not in names:
                raise InputError(
                    f"coefficient {shown(coefficient)} is unknown{nearest(coefficient, names)}",
                    field=option, remedy=f"the forms have {', '.join(sorted(names))}",
                )  # fmt: skip
    return {
        name: procedure
        | {option: {key: values[key] for key in values if key in form.names}
           for option, values in stated.items()}
        for name, form in forms.items()
    }  # fmt: skip


@dataclass(frozen=True)
class SliceScore:
    """How well one form predicts one held-out slice."""

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
    relative_error: float
    """Mean absolute error relative to the loss."""
    coverage: float | None
    """Share of held-out losses inside 90% predictive intervals; None where they were not computed."""


@dataclass(frozen=True)
class Comparison:
    """Held-out errors of several mappings, all fitted by the same procedure to the same rows."""

    source: str
    outer: str
    scores: tuple[SliceScore, ...]
    level: float
    count: int
    notes: tuple[str, ...]
    warnings: tuple[FitWarning, ...] = ()

    @property
    def slices(self) -> tuple[str, ...]:
        """The slices, in the order given."""
        return tuple(dict.fromkeys(score.slice for score in self.scores))

    @property
    def mappings(self) -> tuple[str, ...]:
        """The mappings, from the simplest."""
        return tuple(dict.fromkeys(score.mapping for score in self.scores))

    def score(self, part: str, mapping: str) -> SliceScore:
        """Return the score of one mapping on one slice."""
        for score in self.scores:
            if (score.slice, score.mapping) == (part, mapping):
                return score
        raise InputError(f"no score for {part!r} and {mapping!r}; slices: {', '.join(self.slices)}")

    def table(self) -> Table:
        """Return one row per slice and mapping."""
        return Table.from_records([asdict(score) for score in self.scores])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self) | {"warnings": [warning._asdict() for warning in self.warnings]}

    def __str__(self) -> str:
        return self.summary()

    def summary(self, verbose: bool = False) -> str:
        """Return the best form on each slice, the paper's table, and with ``verbose`` the differences to the best."""
        lines = [*(_answer(self, part) for part in self.slices), "", _table(self)]
        if verbose:
            lines += ["", _differences(self)]
        warnings = [line for each in self.warnings for line in warning(*each)]
        return "\n".join([*lines, *self.notes, *warnings])


def _answer(comparison: Comparison, part: str) -> str:
    scores = [comparison.score(part, name) for name in comparison.mappings]
    best = next(score for score in scores if score.best)
    ties = [score.mapping for score in scores if _mark(score) == "~"]
    also = f"; tied: {', '.join(ties)}" if ties else ""
    where = f"{part} ({counted(best.rows, 'row')}, {counted(best.runs, 'run')})"
    lines = wrap(f"{where}: {best.mapping} predicts best{also}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def _table(comparison: Comparison) -> str:
    """Return the paper's table: a row for each form with its coefficients, a column for each slice, the best marked."""
    shared = "outer laws without recurrence" if comparison.outer == SEVERAL else f"{comparison.outer} law"
    rows = []
    for name in comparison.mappings:
        scores = [comparison.score(part, name) for part in comparison.slices]
        rows.append((f"{name} ({scores[0].coefficients})", *(f"{score.rmse:.4f} {_mark(score)}" for score in scores)))
    table = text_table(("form (coefficients)", *comparison.slices), rows, left=("form (coefficients)",))
    return f"RMSE on the held-out rows in nats, {shared}\n{table}\n* lowest   ~ a tie with it"


def _differences(comparison: Comparison) -> str:
    """Return how much worse than the best each form is, with its interval."""
    title = f"RMSE above the lowest, over {comparison.count} resamples of the held-out runs"
    columns = ("held out", "form", "above", f"{comparison.level:.0%} interval", "worse in", "error", "covered")
    rows = []
    for score in comparison.scores:
        interval = "one run" if score.low is None else f"{score.low:+.4f} to {score.high:+.4f}"
        versus = ("lowest", "", "") if score.best else (f"{score.difference:+.4f}", interval, f"{score.worse:.0%}")
        covered = "" if score.coverage is None else f"{score.coverage:.0%}"
        rows.append((score.slice, score.mapping, *versus, f"{score.relative_error:.2%}", covered))
    return f"{title}\n{text_table(columns, rows, left=('held out', 'form'))}"


def _mark(score: SliceScore) -> str:
    if score.best:
        return "*"
    return "~" if score.low is None or score.low <= 0 else " "
