"""Models and their tokens as laws take them: the points of a law, its units, and whether it counts embeddings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.core.errors import InputError
from loopscale.scaling import costs


class Wanted(Enum):
    """What a number should be, as errors say it; it should be finite too."""

    ABOVE_ZERO = "above zero"
    NOT_NEGATIVE = "zero or more"
    ONE_OR_MORE = "1 or more"

    def holds(self, values: FloatArray) -> BoolArray:
        """Tell which values are finite and in the range."""
        if self is Wanted.ABOVE_ZERO:
            return np.isfinite(values) & (values > 0)
        return np.isfinite(values) & (values >= (1.0 if self is Wanted.ONE_OR_MORE else 0.0))


_FIELDS = {
    "active": ("N_act", Wanted.ABOVE_ZERO),
    "tokens": ("D", Wanted.ABOVE_ZERO),
    "recurrence": ("R", Wanted.ONE_OR_MORE),
    "experts": ("E", Wanted.ONE_OR_MORE),
    "loop": ("N_loop", Wanted.NOT_NEGATIVE),
    "total": ("N_total", Wanted.ABOVE_ZERO),
    "unique_tokens": ("U", Wanted.ABOVE_ZERO),
}


@dataclass(frozen=True, eq=False, init=False)
class Points:
    """Models and their training tokens, as arrays that broadcast against one another.

    Counts are raw numbers (not billions), with or without embeddings as the law wants them:
    ``law.counts`` says which. Numbers and lists work too.
    """

    active: FloatArray
    """N_act: parameters that one token passes through once."""
    tokens: FloatArray
    """D: training tokens."""
    recurrence: FloatArray
    """R: passes through the loop."""
    experts: FloatArray
    """E: routed experts for each active one."""
    loop: FloatArray | None
    """N_loop: active parameters of the loop block. Needed where R > 1 and the law has a mapping."""
    total: FloatArray | None
    """N_total: stored parameters. Needed where E > 1 and the mapping depends on m."""
    unique_tokens: FloatArray | None
    """U: different tokens among D; None where none is repeated."""

    def __init__(
        self,
        active: ArrayLike,
        tokens: ArrayLike,
        recurrence: ArrayLike = 1.0,
        experts: ArrayLike = 1.0,
        loop: ArrayLike | None = None,
        total: ArrayLike | None = None,
        unique_tokens: ArrayLike | None = None,
    ) -> None:
        arguments = {
            "active": active,
            "tokens": tokens,
            "recurrence": recurrence,
            "experts": experts,
            "loop": loop,
            "total": total,
            "unique_tokens": unique_tokens,
        }
        for name, value in arguments.items():
            object.__setattr__(self, name, None if value is None else _checked(name, value))
        try:
            self.shape  # noqa: B018
        except ValueError:
            shapes = ", ".join(f"{name} {np.shape(value)}" for name, value in arguments.items() if value is not None)
            raise InputError(f"points: the arrays do not broadcast together: {shapes}") from None
        if self.loop is not None and np.any(self.loop > self.active * (1 + 1e-12)):
            raise InputError("points: loop (N_loop) exceeds active (N_act) somewhere; it is a part of it")
        if self.total is not None and np.any(self.total < self.active * (1 - 1e-12)):
            raise InputError("points: total (N_total) is below active (N_act) somewhere; it contains it")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that all fields broadcast to."""
        values = [getattr(self, field.name) for field in fields(self)]
        return np.broadcast_shapes(*(np.shape(value) for value in values if value is not None))

    @property
    def m(self) -> FloatArray:
        """The active ratio N_act / N_total; 1 for a dense model."""
        if self.total is not None:
            return self.active / self.total
        if np.all(self.experts == 1):
            return np.ones(np.shape(self.active))
        raise InputError("points: total (N_total) is needed where experts (E) are above 1, to know m = N_act / N_total")

    def rows(self, chosen: Any) -> Points:
        """Return some of the points, where every field has one value for each."""
        rows: dict[str, Any] = {}
        for name in _FIELDS:
            value = getattr(self, name)
            rows[name] = None if value is None else np.broadcast_to(value, self.shape)[chosen]
        return Points(**rows)

    @property
    def unique(self) -> FloatArray:
        """U: unique tokens, at most D; D where no token is repeated."""
        return self.tokens if self.unique_tokens is None else np.minimum(self.unique_tokens, self.tokens)

    @property
    def unrolled(self) -> FloatArray:
        """N_unroll = N_act + (R - 1) N_loop."""
        return np.asarray(costs.unrolled(self.active, self.loop_block, self.recurrence))

    @property
    def train_flops(self) -> FloatArray:
        """Training compute, 6 N_unroll D."""
        return np.asarray(costs.train_flops(self.unrolled, self.tokens))

    @property
    def loop_block(self) -> FloatArray:
        """N_loop, which may be left out only where nothing loops."""
        if self.loop is not None:
            return self.loop
        if np.all(self.recurrence == 1):
            return np.zeros(np.shape(self.active))
        raise InputError("points: loop (N_loop) is needed where recurrence (R) is above 1")


def _checked(name: str, value: ArrayLike) -> FloatArray:
    symbol, wanted = _FIELDS[name]
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"points: {name} ({symbol}) holds something that is not a number") from None
    ok = wanted.holds(array)
    if not ok.all():
        bad = array[~ok].flat[0] if array.ndim else array
        raise InputError(f"points: {name} ({symbol}) is {bad}; it should be finite and {wanted.value}")
    return array


class Counting(Enum):
    """What a law's parameter counts include."""

    WITHOUT_EMBEDDINGS = "without-embeddings"
    WITH_EMBEDDINGS = "with-embeddings"

    def points(
        self,
        active: ArrayLike,
        tokens: ArrayLike,
        recurrence: ArrayLike = 1.0,
        experts: ArrayLike = 1.0,
        loop: ArrayLike | None = None,
        total: ArrayLike | None = None,
        embedding: ArrayLike = 0.0,
        unique_tokens: ArrayLike | None = None,
    ) -> Points:
        """Return models, given without embeddings, as a law that counts in this way sees them.

        This is the one place that adds ``embedding`` to N_act and N_total, or leaves it out.
        """
        extra = np.asarray(embedding, np.float64) if self is Counting.WITH_EMBEDDINGS else 0.0
        return Points(
            active=_checked("active", active) + extra,
            tokens=tokens,
            recurrence=recurrence,
            experts=experts,
            loop=loop,
            total=None if total is None else _checked("total", total) + extra,
            unique_tokens=unique_tokens,
        )


@dataclass(frozen=True)
class Units:
    """How many parameters and tokens make one unit of N and D in the coefficients."""

    parameters: float
    tokens: float

    def __post_init__(self) -> None:
        for name in ("parameters", "tokens"):
            if not 1 <= getattr(self, name) <= 1e15:
                problem = f"{name} is {getattr(self, name)}; it should be from 1 (raw counts) to 1e15"
                raise InputError(problem, where="units")


BILLIONS = Units(1e9, 1e9)
RAW = Units(1.0, 1.0)
