"""What the limits of a budget ask of a candidate.

A limit of one field states its need in ``budget.py``; the formulas here depend on several fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_bytes, format_count
from loopscale.planning.budget import FIELDS, Budget

if TYPE_CHECKING:
    from loopscale.planning.grid import Grid

SLACK = 1 + 1e-12
"""Relative tolerance at a limit: a design that needs exactly the limit fits despite rounding."""

DEVICES = "devices"
"""What rules out a design that the devices cannot train: not a field of the budget."""
DEVICES_TEXTS = (
    "does not fit the devices in training",
    "nothing can be trained on these devices",
    "{candidate} needs more memory in training than they have",
)
"""Why one design is excluded, why all are, and what the closest needs."""
NEAR = 0.01
"""Share of a limit within which a miss is written exactly."""


@dataclass(frozen=True, eq=False)
class Limit:
    """One limit of a plan: what each candidate needs, how much there is, and how to say it."""

    field: str
    """The field of the budget that sets it."""
    need: FloatArray
    """Broadcasts to (F, S, K, P)."""
    cap: FloatArray | float
    """Broadcasts to the same."""
    unit: str
    """Of the field: "bytes", "times", or what stands after a count."""
    excluded: str
    """Why a candidate is ruled out; ``{need}`` is what it needs."""
    empty: str
    """Why nothing fits; names of fields in braces are what the budget has of them."""
    closest: str = "the smallest candidate, {candidate}, needs {need}"
    """What the candidate with the least need takes."""
    amount: Callable[[float], float] = float
    """Turn a need into the unit of the field; they differ where more is better."""

    @cached_property
    def met(self) -> BoolArray:
        """Where the need is within the cap."""
        return np.asarray(self.need <= self.cap * SLACK)

    def write(self, value: float, digits: int) -> str:
        """Write an amount of the field with its unit, to so many digits."""
        if self.unit == "bytes":
            return format_bytes(value, digits)
        if self.unit == "times":
            return f"{value:,.{digits}g} times"
        return f"{format_count(value, digits)} {self.unit}".rstrip()

    def missed(self, need: float, cap: float) -> str:
        """Say why a candidate is ruled out; one that misses the limit by little gets the digits that show it."""
        excess = need / cap - 1
        if not 0 < excess < NEAR:
            return self.excluded.format(need=self.write(self.amount(need), 3))
        digits = min(9, 1 + math.ceil(-math.log10(excess)))
        amount, limit = self.amount(need), self.amount(cap)
        side = "over" if amount > limit else "short"
        over = self.write(abs(amount - limit), 2)
        return f"{self.excluded.format(need=self.write(amount, max(3, digits)))}, {over} {side}"

    def refusal(self, candidate: str, need: float, budget: Budget) -> InputError:
        """Return why no candidate is left; ``candidate`` has the least need."""
        empty = self.empty.format(**{name: FIELDS[name].write(value) for name, value in budget.to_dict().items()})
        remedy = self.closest.format(candidate=candidate, need=self.write(self.amount(need), 3))
        return InputError(empty, field=self.field, remedy=remedy)


def _serving(grid: Grid) -> Limit | None:
    if grid.budget.serve_tokens is None or grid.budget.tokens is not None:
        return None
    return Limit(
        "flops", grid.serving_SKP * (1 + 1e-9), grid.flops[:, None, None, None], "FLOPs",
        "serving exceeds the compute", "serving {serve_tokens} tokens leaves no compute to train",
        "the smallest candidate, {candidate}, needs {need} for it",
    )  # fmt: skip


def _one_token(grid: Grid) -> Limit | None:
    if grid.budget.tokens is not None or np.all(grid.tokens_FSKP >= 1):
        return None
    field = "real_flops" if grid.budget.flops is None and grid.budget.real_flops is not None else "flops"
    return Limit(
        field, 1 / np.maximum(grid.tokens_FSKP, np.finfo(float).tiny), 1.0, "times",
        "the compute is less than one token of training", "the compute does not pay for one token of any candidate",
        "the cheapest, {candidate}, needs {need} as much",
    )  # fmt: skip


def _devices(grid: Grid) -> Limit | None:
    """The memory of the devices that train, where they were asked."""
    if not grid.space.overheads:
        return None
    need = np.where(np.isfinite(grid.space.overhead(grid.space.recurrences)), 1.0, 2.0)
    return Limit(DEVICES, need, 1.0, "times", *DEVICES_TEXTS)


def _memory(grid: Grid) -> Limit | None:
    budget = grid.budget
    if budget.memory is None:
        return None
    return Limit(
        "memory", grid.memory_SKP, budget.memory, "bytes", "needs {need} of memory",
        "nothing fits in {memory} at {bits} bits",
    )  # fmt: skip


def _speed(grid: Grid) -> Limit | None:
    budget = grid.budget
    if budget.min_speed is None or budget.bandwidth is None:
        return None
    return Limit(
        "min_speed", grid.bytes_read_SKP / budget.bandwidth, 1 / budget.min_speed,
        "tokens/s", "generates {need}", "nothing generates {min_speed} at {bandwidth}",
        "the fastest candidate, {candidate}, reaches {need}", amount=lambda seconds: 1 / seconds,
    )  # fmt: skip


def _real_compute(grid: Grid) -> Limit | None:
    budget = grid.budget
    if budget.tokens is None or budget.real_flops is None:
        return None
    return Limit(
        "real_flops", grid.real_flops_FSKP + grid.serving_SKP, budget.real_flops, "FLOPs",
        "needs {need} of real training", "no candidate can be trained on so many tokens",
    )  # fmt: skip


def _compute(grid: Grid) -> Limit | None:
    budget = grid.budget
    if budget.tokens is None or budget.flops is None:
        return None
    return Limit(
        "flops", grid.train_flops_FSKP + grid.serving_SKP, grid.flops[:, None, None, None], "FLOPs",
        "needs {need} of training", "no candidate can be trained on so many tokens",
    )  # fmt: skip


FORMULAS: tuple[Callable[[Grid], Limit | None], ...] = (_serving, _one_token, _memory, _speed, _compute, _real_compute)
"""Of budgets, the hardest first: the first that a candidate misses is the reason that is given."""


def limits_of(grid: Grid) -> tuple[Limit, ...]:
    """Return every limit that the budget sets."""
    limits = (formula(grid) for formula in (_devices, *FORMULAS))
    return (*(limit for limit in limits if limit is not None), *own_limits(grid))


def own_limits(grid: Grid) -> Iterator[Limit]:
    """Yield the limits that fields of the budget state by themselves."""
    for name, field in FIELDS.items():
        cap = getattr(grid.budget, name)
        if field.need is not None and cap is not None:
            empty = f"nothing has as little as {{{name}}}"
            yield Limit(name, field.need(grid), cap, field.unit, field.excluded, empty)
