"""Several data sets or recipes in one table: one fit with shared exponents, and offsets for each group.

Four forms are tried: one law for all, a factor on the loss for each group, an irreducible loss for each, and both. Each
predicts runs that were left out of its fit, and the simplest form wins whose error is within one standard error of the
best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray, IntArray
from loopscale.core.errors import InputError, choice, nearest, shown
from loopscale.core.files import write_json
from loopscale.core.quantities import counted, format_span, format_value
from loopscale.core.text import fact, text_table
from loopscale.fitting.checks import check_data
from loopscale.fitting.covariance import coefficient_intervals
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.estimate import check_resamples, choose_form
from loopscale.fitting.grouped_law import GroupedLaw, Offsets
from loopscale.fitting.held_out import as_good_as_the_best, folds_of, held_out_errors, rms
from loopscale.fitting.problem import NOTHING, Problem, build_problem
from loopscale.fitting.resample import Progress, Scheme
from loopscale.fitting.result import RESAMPLES, Fit, resampled
from loopscale.fitting.search import Recipe
from loopscale.fitting.solve import DELTA, STARTS, Procedure, Solution, fit_at, solve
from loopscale.fitting.summary import warning_lines
from loopscale.scaling import OuterLaw, RecurrenceMapping
from loopscale.scaling.law import GROUPED, GROUPED_SCHEMA

FEWEST = 3
"""Runs that a group needs: with fewer, runs cannot be left out of its offsets."""
MOST = 20
"""Groups that one fit takes."""


@dataclass(frozen=True)
class OffsetForm:
    """One way in which groups may differ, and how well it predicts."""

    offsets: str
    coefficients: int
    error: float
    """Root-mean-square error of ln loss on runs left out of the fit."""
    chosen: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class GroupedFit:
    """Laws of several groups that share their exponents. ``fit["name"]`` is the fit of one group."""

    column: str
    """The column that says which group a row belongs to."""
    fits: Mapping[str, Fit]
    """By group: each an ordinary fit, of the group's own rows and the shared exponents."""
    forms: tuple[OffsetForm, ...]
    """What was tried, from the simplest to the richest."""

    def __getitem__(self, group: str) -> Fit:
        if group not in self.fits:
            raise InputError(
                f"there is no group {shown(group)}{nearest(group, self.fits)}",
                field="group", remedy=f"groups of {self.column} are {', '.join(self.fits)}",
            )  # fmt: skip
        return self.fits[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fits)

    def __len__(self) -> int:
        return len(self.fits)

    @property
    def first(self) -> Fit:
        """The fit of the first group."""
        return next(iter(self.fits.values()))

    @property
    def chosen(self) -> OffsetForm:
        """The form of the offsets that was chosen."""
        return next(form for form in self.forms if form.chosen)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: the content of the file that ``--law`` takes with ``--group``."""
        return {
            "kind": GROUPED,
            "schema": GROUPED_SCHEMA,
            "column": self.column,
            "offsets": self.chosen.offsets,
            "forms": [vars(form) for form in self.forms],
            "laws": {group: fit.law.to_dict() for group, fit in self.fits.items()},
        }

    def save(self, path: str | Path) -> None:
        """Write the laws of all groups as one JSON file."""
        write_json(path, self.to_dict())

    def summary(self, verbose: bool = False) -> str:
        """Return the shared exponents, the groups, and why they differ as they do."""
        first = self.first
        rows = sum(len(fit.observations) for fit in self.fits.values())
        runs = sum(len(fit.observations.runs) for fit in self.fits.values())
        source = Path(first.observations.source).name
        what = counted(runs, "run") if rows == runs else f"{rows:,} losses of {counted(runs, 'run')}"
        names = [term.name for term in first.law.terms]
        own = [name for name in names if len({fit.coefficients[name] for fit in self.fits.values()}) > 1]
        ranked = [f"{form.offsets} {form.error:.2%}" for form in self.forms if not form.chosen]
        lines = [f"Fitted {what} from {source} as {len(self)} groups of {self.column}", ""]
        lines += fact("law", str(first.law.form))
        lines += fact("shared", ", ".join(_estimate(first, name) for name in names if name not in own))
        lines += fact("chosen", f"{self.chosen.offsets}: held-out error {self.chosen.error:.2%}; {', '.join(ranked)}. "
                      "The simplest within one standard error of the best is taken.")  # fmt: skip
        if first.spread is not None:
            lines += fact("10x out", f"±{first.spread.growth:.1%} expected")
        columns = ("group", "runs", "N", "D", *own, "error")
        cells = [self._row(group, fit, own, verbose) for group, fit in self.fits.items()]
        lines += ["", text_table(columns, cells, left=("group",))]
        units = "N and D in billions; " if "A" in own else ""
        lines += [f"{units}error: RMSE in {first.observations.loss_unit}"]
        shown_warnings = dict.fromkeys(
            line for fit in self.fits.values() for line in warning_lines(fit, None if verbose else 1)
        )
        return "\n".join([*lines, *shown_warnings])

    @staticmethod
    def _row(group: str, fit: Fit, own: list[str], verbose: bool) -> tuple[str, ...]:
        span = fit.law.fitted_range
        texts = (_estimate(fit, name).partition(" ")[2] for name in own)
        values = (text if verbose else text.partition(" ")[0] for text in texts)
        return (group, str(len(fit.observations.runs)), format_span(*span.size), format_span(*span.tokens), *values,
                f"{fit.law.rmse or 0.0:.2g}")  # fmt: skip

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"<GroupedFit of {len(self)} groups ({', '.join(self)}): {self.chosen.offsets}>"


def _estimate(fit: Fit, name: str) -> str:
    """Return a coefficient with its interval, exponents as papers print them."""
    term = next(term for term in fit.law.terms if term.name == name)
    value = term.published_sign * fit.coefficients[name]
    if fit.resamples is None:
        return f"{name} {value:.4g}"
    low, high = sorted(term.published_sign * end for end in coefficient_intervals(fit)[name])
    half = (high - low) / 2
    return f"{name} {format_value(value, half)} [{format_value(low, half)}, {format_value(high, half)}]"


def fit_groups(
    data: Any,
    group: str,
    *,
    outer: str | OuterLaw | None = None,
    mapping: str | RecurrenceMapping | None = None,
    fixed: Mapping[str, float] = NOTHING,
    bounds: Mapping[str, tuple[float, float]] = NOTHING,
    tie: Mapping[str, str] = NOTHING,
    delta: float | None = DELTA,
    recipe: Recipe | str = Recipe.DEFAULT,
    starts: int = STARTS,
    seed: int = 0,
    resamples: int = RESAMPLES,
    scheme: Scheme | str = Scheme.RUNS,
    progress: Progress | None = None,
) -> GroupedFit:
    """Fit the groups of a table together: exponents are shared, and each group has its own offsets.

    ``group`` is the column of the groups: data sets, tokenizers, recipes. They differ in nothing, a factor, an
    irreducible loss or both: the simplest of these that predicts held-out runs as well as the best. Other options are
    those of ``fit``. The result holds one ``Fit`` for each group.
    """
    observations = Observations.of(data)
    check_resamples(resamples)
    procedure = Procedure(delta, choice(Recipe, recipe, "recipe"), starts, seed)
    if procedure.recipe is Recipe.PAPER:
        raise InputError("the paper's procedure has no groups", field="recipe", remedy="choose default or no-prior")
    names, index = groups_of(observations, group)
    inner, recurrence = choose_form(observations, outer, mapping)
    check_data(observations, inner, recurrence, fixed, tie)
    folds = folds_of(observations.run, index)
    prior = procedure.recipe is Recipe.DEFAULT
    tried = list[tuple[OffsetForm, Problem, Solution, FloatArray]]()
    for offsets in Offsets:
        law = GroupedLaw(inner, len(names), offsets)
        problem = build_problem(observations, law, recurrence, fixed, bounds, tie, prior=prior)
        problem = replace(problem, x=replace(problem.x, group=index))
        if len(problem) <= len(problem.free):
            break
        solution = solve(problem, procedure)
        errors = held_out_errors(problem, solution.optima.u, solution.delta, folds)
        if errors is None:
            break
        tried.append((OffsetForm(offsets.value, len(problem.free), rms(errors)), problem, solution, errors))
    if not tried:
        raise InputError("too few runs to leave some out of the fit", where=observations.source)
    which = int(np.argmax(as_good_as_the_best([errors for *_, errors in tried], observations.run)))
    forms = tuple(replace(form, chosen=k == which) for k, (form, *_) in enumerate(tried))
    _, problem, solution, _ = tried[which]
    joint = fit_at(solution, observations, problem, procedure, bounds)
    if resamples:
        joint = resampled(joint, problem, solution.optima.u, resamples, scheme=scheme, seed=seed, progress=progress)
    held = {"fixed": fixed, "bounds": bounds, "tie": tie}
    fits = {name: _of_group(joint, group, name, index, g, held) for g, name in enumerate(names)}
    return GroupedFit(group, MappingProxyType(fits), forms)


def _of_group(
    joint: Fit, column: str, name: str, index: IntArray, g: int, held: Mapping[str, Mapping[str, Any]]
) -> Fit:
    """Return the fit of one group: its law, on its rows. ``joint`` has the coefficients of all groups together.

    ``held`` has what was fixed, bounded and tied. A fixed coefficient that the group's offset moves is free in it.
    """
    law = joint.outer
    assert isinstance(law, GroupedLaw)
    gain = [term.name for term in joint.mapping.coefficients]
    order = (*(term.name for term in law.inner.coefficients), *gain)

    def own(values: Mapping[str, Any]) -> dict[str, Any]:
        return law.of_group(values, g) | {each: values[each] for each in gain}

    data, label = joint.observations.where(index == g), f"{column} == {name!r}"
    data = replace(data, name=f"{data.name} {name}", reading=data.reading.narrowed(label))
    coefficients = own(joint.coefficients)
    own_held: dict[str, Any] = {
        kind: MappingProxyType({each: value for each, value in stated.items() if each in order})
        for kind, stated in held.items()
    }
    fixed = {each: value for each, value in own_held["fixed"].items() if coefficients[each] == value}
    own_held["fixed"] = MappingProxyType(fixed)
    result = replace(
        joint,
        observations=data,
        outer=law.inner,
        coefficients=MappingProxyType({each: float(coefficients[each]) for each in order}),
        **own_held,
    )
    if joint.resamples is None or joint.spread is None:
        return result
    drawn = own(dict(zip(joint.coefficients, joint.resamples.T, strict=True)))
    spread = replace(joint.spread, frontier=float(data.points.train_flops.max()))
    return replace(result, resamples=np.stack([drawn[each] for each in order], axis=1), spread=spread).with_frontier()


def groups_of(data: Observations, column: str) -> tuple[list[str], IntArray]:
    """Return the groups in order of their size, the largest first, and the number of each row's group."""
    if column not in data.extra:
        raise InputError(
            f"there is no column {shown(column)}{nearest(column, data.extra)}",
            where=data.source, field="group", remedy="name the column of the groups",
        )  # fmt: skip
    cells = np.array([_text(cell) for cell in data.extra[column]], dtype=np.str_)
    names, counts = np.unique(cells, return_counts=True)
    if not 2 <= len(names) <= MOST:
        raise InputError(
            f"column {shown(column)} has {counted(len(names), 'value')}; groups are from 2 to {MOST}",
            where=data.source, field="group",
        )  # fmt: skip
    ordered = names[np.argsort(-counts, kind="stable")].tolist()
    for name in ordered:
        runs = len(np.unique(data.run[cells == name]))
        if runs < FEWEST:
            raise InputError(
                f"group {shown(name)} has {counted(runs, 'run')}; it takes {FEWEST} to find its offsets",
                where=data.source, field="group", remedy=f"leave it out: `keep` \"{column} != '{name}'\"",
            )  # fmt: skip
    return ordered, np.array([ordered.index(cell) for cell in cells.tolist()], dtype=np.int64)


def _text(cell: Any) -> str:
    """Return a cell as a group's name: 2 for 2.0."""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()
