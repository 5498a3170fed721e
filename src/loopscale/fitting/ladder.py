"""A ladder of forms, for data that do not determine the full one, or that it does not describe.

Below the full form, a rung holds coefficients at values where they have no effect, ties the two exponents, or takes a
simpler recurrence mapping. Beside it are other mappings and the interaction of N and D. All predict the same held-out
runs: below, the lowest error wins; beside, the full form stays unless it is more than one standard error above it. The
interaction is only shown: it describes most public sweeps better, and forecasts their larger runs no better.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.held_out import as_good_as_the_best, folds_of, held_out_errors, rms
from loopscale.fitting.lack_of_fit import lack_of_fit
from loopscale.fitting.noise import winsorised
from loopscale.fitting.result import Fit
from loopscale.fitting.solve import Procedure, fit_form
from loopscale.scaling import OuterLaw, RecurrenceMapping, outer_law
from loopscale.scaling import mapping as find_mapping

STARTS = 4
FEW, FEWEST_FREE = 3, 5
"""With fewer rows than this for each coefficient, simpler forms are tried too; a law of five has none but ties."""
PLAIN_EXPERTS = {"E_start": 1.0, "E_max": 1e6}
"""Effective experts are then the experts themselves."""
DROPPED = ("zeta", "gamma", "omega")
"""Exponents of the experts that smaller MoE laws lack, in the order in which they go."""
SIMPLER = {"sparsity-conditional": ("bounded", "power", "linear", "none"), "bounded": ("power", "linear", "none")}
"""Mappings with fewer coefficients than each default one."""
SHOWN_ONLY = "interaction"
MORE_GENERAL = {"sparsity-conditional": ("general-conditional",), "bounded": ("general",)}


@dataclass(frozen=True)
class LadderScore:
    """How well one form of the ladder describes and predicts the data."""

    form: str
    coefficients: int
    error: float
    """Root-mean-square error of ln loss on held-out runs."""
    aicc: float | None
    """Akaike's criterion with its correction for few rows, lower is better; None where they are too few for it."""
    chosen: bool = False
    eligible: bool = True
    """Whether it may be chosen; the interaction is shown only."""
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True)
class LadderForm:
    """A form of the ladder."""

    outer: OuterLaw
    mapping: RecurrenceMapping
    fixed: Mapping[str, float] = field(default_factory=dict)
    tie: Mapping[str, str] = field(default_factory=dict)


def below(outer: OuterLaw, mapping: RecurrenceMapping) -> Iterator[LadderForm]:
    """Yield simpler forms than the full one, richest first."""
    names = {term.name for term in outer.coefficients}
    held: list[dict[str, float]] = [{}]
    if set(PLAIN_EXPERTS) <= names:
        held.append(dict(PLAIN_EXPERTS))
        held += [dict(PLAIN_EXPERTS) | dict.fromkeys(DROPPED[: k + 1], 0.0) for k in range(len(DROPPED))]
    for name in (mapping.name, *SIMPLER.get(mapping.name, ())):
        for fixed in held:
            if fixed or name != mapping.name:
                yield LadderForm(outer, find_mapping(name), fixed)
    if mapping.name == "none" and {"alpha", "beta"} <= names:
        yield LadderForm(outer, mapping, held[-1], {"alpha": "beta"})


def beside(outer: OuterLaw, mapping: RecurrenceMapping) -> Iterator[LadderForm]:
    """Yield forms that may describe data better than the full one does."""
    for name in (*MORE_GENERAL.get(mapping.name, ()), *SIMPLER.get(mapping.name, ())):
        yield LadderForm(outer, find_mapping(name))
    if outer.name == "chinchilla":
        yield LadderForm(outer_law(SHOWN_ONLY), mapping)


def fit_best_form(
    data: Observations,
    outer: OuterLaw,
    mapping: RecurrenceMapping,
    procedure: Procedure,
    warm: Mapping[str, float] | None = None,
) -> Fit:
    """Fit the full form, and those of the ladder where the data do not determine it or it does not describe them."""
    try:
        full = fit_form(data, outer, mapping, procedure, warm=warm)
    except InputError:
        simpler = _best_of(data, [], below(outer, mapping), procedure)
        if simpler is None:
            raise
        return simpler
    few = len(data) < FEW * len(full.free) > FEW * FEWEST_FREE
    if full.degenerate or few:
        return _best_of(data, [full], below(outer, mapping), procedure) or full
    if (trend := lack_of_fit(full)) is None or not trend.matters:
        return full
    return _best_of(data, [full], beside(outer, mapping), procedure, keep_first=True) or full


def _best_of(
    data: Observations, fits: list[Fit], forms: Iterable[LadderForm], procedure: Procedure, keep_first: bool = False
) -> Fit | None:
    """Return the sound fit whose form predicts held-out runs best, with the ladder; None where no form is sound.

    ``fits`` are there already. With ``keep_first`` the first of them stays unless another one is clearly better.
    """
    procedure = replace(procedure, starts=min(STARTS, procedure.starts))
    for form in forms:
        with suppress(InputError):  # too few rows for this one
            fits.append(fit_form(data, form.outer, form.mapping, procedure, fixed=form.fixed, tie=form.tie))
    fold = folds_of(data.run)
    tried: list[Fit] = []
    errors: list[FloatArray] = []
    for result in (result for result in fits if not result.degenerate):
        held_out = held_out_errors(result.problem, result.optimum, result.delta, fold)
        if held_out is not None:
            tried.append(result)
            errors.append(held_out)
    if not tried:
        return None
    eligible = [k for k, result in enumerate(tried) if result.outer.name != SHOWN_ONLY]
    best = min(eligible, key=lambda k: rms(errors[k]))
    first_is_there = keep_first and tried[0] is fits[0]
    if first_is_there and as_good_as_the_best([errors[k] for k in eligible], data.run)[0]:
        best = 0
    scores = tuple(
        LadderScore(_name(result), len(result.free), rms(each), _aicc(result), k == best, k in eligible)
        for k, (result, each) in enumerate(zip(tried, errors, strict=True))
    )
    return replace(tried[best], ladder=scores)


def _name(result: Fit) -> str:
    held = [name for name in (*PLAIN_EXPERTS, *DROPPED) if name in result.fixed]
    without = f" without {', '.join(held)}" if held else ""
    tied = "".join(f", {a} = {b}" for a, b in result.tie.items())
    gain = f", {result.mapping.name} recurrence" if result.mapping.loops else ""
    return f"{result.outer.name}{without}{tied}{gain}"


def _aicc(result: Fit) -> float | None:
    rows, free = len(result.residuals), len(result.free)
    squares = float(np.sum(winsorised(result.residuals, free) ** 2))
    if rows - free - 2 <= 0:
        return None
    k = free + 1  # the noise is estimated too
    return rows * float(np.log(max(squares, 1e-300) / rows)) + 2 * k + 2 * k * (k + 1) / (rows - k - 1)
