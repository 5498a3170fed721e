"""What the limits of a budget ask of a candidate.

A limit of one field states its need in ``budget.py``; the formulas here depend on several fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_bytes, format_count
from loopscale.planning.budget import FIELDS

if TYPE_CHECKING:
    from loopscale.planning.grid import Grid

SLACK = 1 + 1e-12
"""Relative tolerance at a limit: a design that needs exactly the limit fits despite rounding."""


@dataclass(frozen=True, eq=False)
class Limit:
    """One limit of a plan: what each candidate needs, how much there is, and how to say it."""

    field: str
    """The field of the budget that sets it."""
    need: FloatArray
    """Broadcasts to (F, S, K, P)."""
    cap: FloatArray | float
    """Broadcasts to the same."""
    write: Callable[[float], str]
    """Write an amount of the field with its unit."""
    excluded: str
    """Why a candidate is ruled out; ``{need}`` is what it needs."""
    empty: str
    """Why nothing fits."""
    closest: str = "the smallest candidate, {candidate}, needs {need}"
    """What the candidate with the least need takes."""
    amount: Callable[[float], float] = float
    """Turn a need into the unit of the field; they differ where more is better."""

    @cached_property
    def met(self) -> BoolArray:
        """Where the need is within the cap."""
        return np.asarray(self.need <= self.cap * SLACK)

    def refusal(self, candidate: str, need: float) -> InputError:
        """Return why no candidate is left; ``candidate`` has the least need."""
        remedy = self.closest.format(candidate=candidate, need=self.write(self.amount(need)))
        return InputError(self.empty, field=self.field, remedy=remedy)


def _flops(value: float) -> str:
    return f"{format_count(value)} FLOPs"


def _serving(grid: Grid) -> Limit | None:
    served = grid.budget.serve_tokens
    if served is None or grid.budget.tokens is not None:
        return None
    return Limit(
        "flops", grid.inference_SKP * served * (1 + 1e-9), grid.flops[:, None, None, None], _flops,
        "serving exceeds the compute", f"serving {format_count(served)} tokens leaves no compute to train",
        "the smallest candidate, {candidate}, needs {need} for it",
    )  # fmt: skip


def _memory(grid: Grid) -> Limit | None:
    budget = grid.budget
    if budget.memory is None:
        return None
    return Limit(
        "memory", grid.memory_SKP, budget.memory, format_bytes, "needs {need} of memory",
        f"nothing fits in {format_bytes(budget.memory)} at {budget.bits:g} bits",
    )  # fmt: skip


def _speed(grid: Grid) -> Limit | None:
    budget = grid.budget
    if budget.min_speed is None or budget.bandwidth is None:
        return None
    return Limit(
        "min_speed", grid.bytes_read_SKP / budget.bandwidth, 1 / budget.min_speed,
        lambda speed: f"{format_count(speed)} tokens/s", "generates {need}",
        f"nothing generates {format_count(budget.min_speed)} tokens/s at {format_bytes(budget.bandwidth)}/s",
        "the fastest candidate, {candidate}, reaches {need}", amount=lambda seconds: 1 / seconds,
    )  # fmt: skip


def _compute(grid: Grid) -> Limit | None:
    budget = grid.budget
    if budget.tokens is None or budget.flops is None:
        return None
    need = grid.train_flops_FSKP + grid.inference_SKP * (budget.serve_tokens or 0.0)
    return Limit(
        "flops", need, grid.flops[:, None, None, None], _flops, "needs {need} of training",
        "no candidate can be trained on so many tokens",
    )  # fmt: skip


FORMULAS: tuple[Callable[[Grid], Limit | None], ...] = (_serving, _memory, _speed, _compute)
"""The hardest first: the first that a candidate misses is the reason that is given."""


def limits_of(grid: Grid) -> tuple[Limit, ...]:
    """Return every limit that the budget sets."""
    made: Iterator[Limit | None] = (formula(grid) for formula in FORMULAS)
    return (*(limit for limit in made if limit is not None), *_own_limits(grid))


def _own_limits(grid: Grid) -> Iterator[Limit]:
    for name, field in FIELDS.items():
        cap = getattr(grid.budget, name)
        if field.need is not None and cap is not None:
            yield Limit(
                name, field.need(grid), cap, field.write, field.excluded, f"nothing has as little as {field.write(cap)}"
            )
