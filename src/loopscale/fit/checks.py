"""What a law needs that the data lack, said before the fit, with what can be fitted instead."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from loopscale.errors import InputError
from loopscale.fit.observations import Observations
from loopscale.laws import OuterLaw, Points, RecurrenceMapping
from loopscale.laws.mappings import NoGain
from loopscale.quantities import format_count

TOKEN_TERM = ("B", "beta")
EXPERT_TERMS = ("delta", "gamma", "omega", "zeta", "b", "c", "E_start", "E_max")


def check_data(data: Observations, outer: OuterLaw, mapping: RecurrenceMapping, fixed: Mapping[str, float]) -> None:
    """Refuse data that cannot tell the form's free coefficients apart."""
    free = [term.name for term in outer.coefficients + mapping.coefficients if term.name not in fixed]
    if not free:
        raise InputError("fixed: every coefficient is held, so nothing is left to fit; leave some of them out of fixed")
    if not len(data):
        raise InputError(f"{data.source}: there are no rows to fit")
    _check_columns(data, outer, mapping)
    _check_runs(data, free)
    _check_size(data, free)
    if outer.uses_tokens:
        _check_tokens(data, outer, free)
    if outer.uses_experts:
        _check_experts(data, outer, mapping, free)
    if not isinstance(mapping, NoGain):
        _check_recurrence(data, outer, mapping)
    _check_count(data, outer, mapping, free)


def _check_columns(data: Observations, outer: OuterLaw, mapping: RecurrenceMapping) -> None:
    """Say which optional column the mapping needs."""
    if isinstance(mapping, NoGain):
        return
    instead = f"fit mapping='none' or give the column (outer={outer.name!r})"
    if data.points.loop is None and (data.points.recurrence > 1).any():
        raise InputError(
            f"{data.source}: {mapping.name!r} recurrence needs N_loop, the active parameters of the loop block, "
            f"where R > 1; {instead}"
        )
    if mapping.needs_ratio and data.points.total is None and (data.points.experts > 1).any():
        raise InputError(
            f"{data.source}: {mapping.name!r} recurrence needs N_total where E > 1, to know m = N_act / N_total "
            "(E and k alone do not say how much is routed); give the column or fit mapping='bounded'"
        )


def _check_runs(data: Observations, free: list[str]) -> None:
    if len(data.runs) == 1 and any(name not in TOKEN_TERM and name != "c" for name in free):
        raise InputError(
            f"{data.source}: all {len(data)} rows are of one run ({str(data.runs[0])!r}), which cannot tell size from "
            "anything else; add runs, or fit its tokens alone: outer='chinchilla', mapping='none', A and alpha fixed"
        )


def _check_size(data: Observations, free: list[str]) -> None:
    if {"alpha", "a"} & set(free) and _constant(data.points, "active"):
        raise InputError(
            f"{data.source}: every row has N_act = {format_count(data.points.active[0])}, so the exponent of the "
            "parameters cannot be found; add another size, or hold A and alpha with fixed"
        )


def _check_tokens(data: Observations, outer: OuterLaw, free: list[str]) -> None:
    if set(TOKEN_TERM) & set(free) and _constant(data.points, "tokens"):
        other = "outer='routed', which has no token term, or " if outer.uses_experts else ""
        raise InputError(
            f"{data.source}: every row has D = {format_count(data.points.tokens[0])}, so the data term cannot be told "
            f"from c; add another D, or fit {other}outer={outer.name!r} with B and beta fixed"
        )


def _check_experts(data: Observations, outer: OuterLaw, mapping: RecurrenceMapping, free: list[str]) -> None:
    own = [name for name in EXPERT_TERMS if name in free and not (name == "c" and outer.name != "routed")]
    if own and _constant(data.points, "experts"):
        gain = "bounded" if mapping.needs_ratio else mapping.name
        raise InputError(
            f"{data.source}: every row has E = {data.points.experts[0]:g}, so how experts change the loss cannot be "
            f"found; fit outer='chinchilla', mapping={gain!r}"
        )


def _check_recurrence(data: Observations, outer: OuterLaw, mapping: RecurrenceMapping) -> None:
    R = data.points.recurrence
    if R.max() == 1:
        raise InputError(
            f"{data.source}: no row has R > 1, so {mapping.name!r} recurrence cannot be found; "
            f"fit outer={outer.name!r}, mapping='none'"
        )
    if mapping.coefficients and _constant(data.points, "recurrence"):
        raise InputError(
            f"{data.source}: every row has R = {R[0]:g}, so the gain from looping cannot be told from size; "
            f"add rows with R = 1, or fit outer={outer.name!r}, mapping='none'"
        )


def _check_count(data: Observations, outer: OuterLaw, mapping: RecurrenceMapping, free: list[str]) -> None:
    if len(data) > len(free):
        return
    simpler = "" if (outer.name, mapping.name) == ("chinchilla", "none") else (
        ", or fit outer='chinchilla', mapping='none', which has 5"
    )  # fmt: skip
    raise InputError(
        f"{data.source}: {len(data)} rows cannot determine {len(free)} coefficients ({', '.join(free)}); "
        f"add rows, hold some with fixed{simpler}"
    )


def _constant(points: Points, axis: str) -> bool:
    values = getattr(points, axis)
    return bool(np.ptp(values) <= 1e-9 * np.max(values))
