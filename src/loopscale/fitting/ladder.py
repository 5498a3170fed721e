"""A ladder of nested forms, for data that do not determine the richest: the rung that predicts held-out runs best wins.

A rung holds coefficients of the full form at values where they have no effect, ties the two exponents, or takes a
simpler recurrence mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscale.core.errors import InputError
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.noise import winsorised
from loopscale.scaling import OuterLaw, RecurrenceMapping
from loopscale.scaling import mapping as find_mapping

if TYPE_CHECKING:
    from loopscale.fitting.result import Fit

FOLDS = 5
STARTS = 4
PLAIN_EXPERTS = {"E_start": 1.0, "E_max": 1e6}
"""Effective experts are then the experts themselves."""
DROPPED = ("zeta", "gamma", "omega")
"""Exponents of the experts that smaller MoE laws lack, in the order in which they go."""


@dataclass(frozen=True)
class Rung:
    """One form of the ladder, with how well it describes and predicts the data."""

    form: str
    coefficients: int
    error: float
    """Root-mean-square error of ln loss on held-out runs."""
    aicc: float
    """Akaike's criterion with its correction for few rows; lower is better."""
    chosen: bool = False


@dataclass(frozen=True)
class Step:
    """What a rung changes in the full form."""

    mapping: RecurrenceMapping
    fixed: Mapping[str, float] = field(default_factory=dict)
    tie: Mapping[str, str] = field(default_factory=dict)


def steps(outer: OuterLaw, mapping: RecurrenceMapping) -> Iterator[Step]:
    """Yield the full form and those below it, richest first."""
    names = {term.name for term in outer.coefficients}
    held: list[dict[str, float]] = [{}]
    if set(PLAIN_EXPERTS) <= names:
        held.append(dict(PLAIN_EXPERTS))
        held += [dict(PLAIN_EXPERTS) | dict.fromkeys(DROPPED[: k + 1], 0.0) for k in range(len(DROPPED))]
    below = {"sparsity-conditional": ("bounded", "power", "linear", "none"), "bounded": ("power", "linear", "none")}
    for name in (mapping.name, *below.get(mapping.name, ())):
        for fixed in held:
            yield Step(find_mapping(name), fixed)
    if mapping.name == "none" and {"alpha", "beta"} <= names:
        yield Step(mapping, held[-1], {"alpha": "beta"})


def climb(
    data: Observations, outer: OuterLaw, mapping: RecurrenceMapping, fit: Callable[..., Fit], options: dict[str, Any]
) -> Fit | None:
    """Return the sound fit whose form predicts held-out runs best, with the ladder; None where no form is sound."""
    tried: list[tuple[Rung, Fit]] = []
    for step in steps(outer, mapping):
        form = {"outer": outer, "mapping": step.mapping, "fixed": step.fixed, "tie": step.tie, "resamples": 0}
        try:
            result = fit(data, **{**options, **form, "starts": min(STARTS, options["starts"])})
            error = _held_out(data, result, fit, {**options, **form})
        except InputError:  # still too few rows
            continue
        if not result.degenerate:
            free = len(result.free)
            tried.append((Rung(_name(result), free, error, _aicc(result)), result))
    if not tried:
        return None
    best = min(range(len(tried)), key=lambda k: tried[k][0].error)
    rungs = tuple(replace(rung, chosen=k == best) for k, (rung, _) in enumerate(tried))
    return replace(tried[best][1], ladder=rungs)


def _name(result: Fit) -> str:
    held = [name for name in (*PLAIN_EXPERTS, *DROPPED) if name in result.fixed]
    without = f" without {', '.join(held)}" if held else ""
    tied = "".join(f", {a} = {b}" for a, b in result.tie.items())
    return f"{result.outer.name}{without}{tied}; mapping {result.mapping.name}"


def _held_out(data: Observations, result: Fit, fit: Callable[..., Fit], options: dict[str, Any]) -> float:
    """Return the error on held-out runs, the same folds for every form."""
    folds = min(FOLDS, len(data.runs))
    order = np.random.default_rng(0).permutation(len(data.runs))
    errors = []
    for k in range(folds):
        mask = np.isin(data.run, data.runs[order[k::folds]])
        part = fit(data.where(~mask), **{**options, "warm": dict(result.coefficients), "starts": 1})
        errors.append(np.log(part.curve(data.points.rows(mask)) / data.loss[mask]))
    return float(np.sqrt(np.mean(winsorised(np.concatenate(errors), 0) ** 2)))


def _aicc(result: Fit) -> float:
    rows, free = len(result.residuals), len(result.free)
    squares = float(np.sum(winsorised(result.residuals, free) ** 2))
    if rows - free - 2 <= 0:
        return float("inf")
    k = free + 1  # the noise is estimated too
    return rows * float(np.log(max(squares, 1e-300) / rows)) + 2 * k + 2 * k * (k + 1) / (rows - k - 1)
