"""Data from which a form is not identifiable: what is missing, and what to fit instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from loopscale.core.errors import InputError
from loopscale.core.quantities import format_count
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.problem import NOTHING
from loopscale.scaling import Coefficient, OuterLaw, Points, RecurrenceMapping, Role, Term


def check_data(
    data: Observations,
    outer: OuterLaw,
    mapping: RecurrenceMapping,
    fixed: Mapping[str, float],
    tie: Mapping[str, str] = NOTHING,
) -> None:
    """Refuse data that cannot determine the form's free coefficients."""
    held = {*fixed, *tie}
    free = [term for term in outer.coefficients + mapping.coefficients if term.name not in held]
    if not free:
        raise InputError(
            "every coefficient is held, so nothing is left to fit",
            field="fixed", remedy="leave some of them out of `fixed`",
        )  # fmt: skip
    if not len(data):
        raise InputError("there are no rows to fit", where=data.source)
    _check_columns(data, mapping)
    _check_runs(data, free)
    _check_size(data, free)
    if outer.uses_tokens:
        _check_tokens(data, outer, free)
    if outer.uses_experts:
        _check_experts(data, mapping, free)
    if mapping.loops:
        _check_recurrence(data, mapping)
    if outer.uses_unique:
        _check_repetition(data, free)
    _check_count(data, outer, mapping, free)


def _check_columns(data: Observations, mapping: RecurrenceMapping) -> None:
    """Say which optional column the mapping needs."""
    if not mapping.loops:
        return
    if data.points.loop is None and (data.points.recurrence > 1).any():
        raise InputError(
            f"{mapping.name!r} recurrence needs N_loop, the active parameters of the loop block, where R > 1",
            where=data.source, remedy="give the column, or choose `mapping` none",
        )  # fmt: skip
    if mapping.needs_ratio and data.points.total is None and (data.points.experts > 1).any():
        raise InputError(
            f"{mapping.name!r} recurrence needs N_total where E > 1, to know m = N_act / N_total (E and k alone do not "
            "say how much is routed)",
            where=data.source, remedy="give the column, or choose `mapping` bounded",
        )  # fmt: skip


def _belonging(free: list[Coefficient], *terms: Term) -> list[Coefficient]:
    return [coefficient for coefficient in free if coefficient.term in terms]


def _listed(coefficients: Sequence[Coefficient]) -> str:
    return " and ".join(coefficient.name for coefficient in coefficients)


def _check_runs(data: Observations, free: list[Coefficient]) -> None:
    if len(data.runs) == 1 and len(_belonging(free, Term.DATA, Term.IRREDUCIBLE)) < len(free):
        raise InputError(
            f"all {len(data)} rows are of one run ({str(data.runs[0])!r}), which cannot separate the effect of size",
            where=data.source,
            remedy="add runs, or fit its tokens alone: `outer` chinchilla, `mapping` none, and A and alpha in `fixed`",
        )


def _check_size(data: Observations, free: list[Coefficient]) -> None:
    size = _belonging(free, Term.SIZE)
    if any(term.role is Role.EXPONENT for term in size) and _constant(data.points, "active"):
        raise InputError(
            f"every row has N_act = {format_count(data.points.active[0])}, so the exponent of the parameters is "
            "not identifiable",
            where=data.source, remedy=f"add another size, or hold {_listed(size)} with `fixed`",
        )  # fmt: skip


def _check_tokens(data: Observations, outer: OuterLaw, free: list[Coefficient]) -> None:
    token = _belonging(free, Term.DATA)
    if token and _constant(data.points, "tokens"):
        other = "choose `outer` routed, which has no token term, or " if outer.uses_experts else ""
        raise InputError(
            f"every row has D = {format_count(data.points.tokens[0])}, so the data term and c are not identifiable",
            where=data.source, remedy=f"add another D, or {other}hold {_listed(token)} with `fixed`",
        )  # fmt: skip


def _check_experts(data: Observations, mapping: RecurrenceMapping, free: list[Coefficient]) -> None:
    if _belonging(free, Term.EXPERTS) and _constant(data.points, "experts"):
        gain = "bounded" if mapping.needs_ratio else mapping.name
        raise InputError(
            f"every row has E = {data.points.experts[0]:g}, so the effect of experts is not identifiable",
            where=data.source, remedy=f"choose `outer` chinchilla with `mapping` {gain}",
        )  # fmt: skip


def _check_recurrence(data: Observations, mapping: RecurrenceMapping) -> None:
    R = data.points.recurrence
    if R.max() == 1:
        raise InputError(
            f"no row has R > 1, so {mapping.name!r} recurrence is not identifiable",
            where=data.source, remedy="choose `mapping` none",
        )  # fmt: skip
    if mapping.coefficients and _constant(data.points, "recurrence"):
        raise InputError(
            f"every row has R = {R[0]:g}, so the gain from looping and the size term are not identifiable",
            where=data.source, remedy="add rows with R = 1, or choose `mapping` none",
        )  # fmt: skip


def _check_repetition(data: Observations, free: list[Coefficient]) -> None:
    own = _belonging(free, Term.REPETITION)
    if own and not np.any(data.points.tokens > data.points.unique):
        missing = "has no column of unique tokens (U)" if data.points.unique_tokens is None else "repeats no token"
        raise InputError(
            f"it {missing}, so {_listed(own)} cannot be found",
            where=data.source, remedy=f"fit a law without repetition, or hold {_listed(own)} with `fixed`",
        )  # fmt: skip


def _check_count(data: Observations, outer: OuterLaw, mapping: RecurrenceMapping, free: list[Coefficient]) -> None:
    if len(data) > len(free):
        return
    names = [term.name for term in free]
    remedies = ["add rows", "hold some with `fixed`"]
    if (outer.name, mapping.name) != ("chinchilla", "none"):
        remedies.append("choose `outer` chinchilla with `mapping` none, which has 5")
    if {"alpha", "beta"} <= set(names):
        remedies.append("tie the exponents with `tie` alpha=beta")
    raise InputError(
        f"{len(data)} rows cannot determine {len(free)} coefficients ({', '.join(names)})",
        where=data.source, remedy=f"{', '.join(remedies[:-1])}, or {remedies[-1]}",
    )  # fmt: skip


def _constant(points: Points, axis: str) -> bool:
    values = getattr(points, axis)
    return bool(np.ptp(values) <= 1e-9 * np.max(values))
