"""Where a law is evaluated."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from loopscale.arrays import FloatArray
from loopscale.errors import InputError

_WANTED = {
    "active": ("N_act", "above zero"),
    "tokens": ("D", "above zero"),
    "recurrence": ("R", "1 or more"),
    "experts": ("E", "1 or more"),
    "loop": ("N_loop", "zero or more"),
    "total": ("N_total", "above zero"),
}


@dataclass(frozen=True, eq=False, init=False)
class Points:
    """Models and their training tokens, as arrays that broadcast against one another.

    Counts are raw numbers (not billions), with or without embeddings as the law wants them:
    ``law.counts`` says which. Numbers and lists are taken too.
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

    def __init__(
        self,
        active: ArrayLike,
        tokens: ArrayLike,
        recurrence: ArrayLike = 1.0,
        experts: ArrayLike = 1.0,
        loop: ArrayLike | None = None,
        total: ArrayLike | None = None,
    ) -> None:
        given = {
            "active": active,
            "tokens": tokens,
            "recurrence": recurrence,
            "experts": experts,
            "loop": loop,
            "total": total,
        }
        for name, value in given.items():
            object.__setattr__(self, name, None if value is None else _checked(name, value))
        try:
            self.shape  # noqa: B018
        except ValueError:
            shapes = ", ".join(f"{name} {np.shape(value)}" for name, value in given.items() if value is not None)
            raise InputError(f"points: the arrays do not broadcast together: {shapes}") from None
        if self.loop is not None and np.any(self.loop > self.active * (1 + 1e-12)):
            raise InputError("points: loop (N_loop) exceeds active (N_act) somewhere; it is a part of it")
        if self.total is not None and np.any(self.total < self.active * (1 - 1e-12)):
            raise InputError("points: total (N_total) is below active (N_act) somewhere; it contains it")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that all fields broadcast to."""
        given = [getattr(self, field.name) for field in fields(self)]
        return np.broadcast_shapes(*(np.shape(value) for value in given if value is not None))

    @property
    def m(self) -> FloatArray:
        """The active ratio N_act / N_total; 1 for a dense model."""
        if self.total is not None:
            return self.active / self.total
        if np.all(self.experts == 1):
            return np.ones(np.shape(self.active))
        raise InputError("points: total (N_total) is needed where experts (E) are above 1, to know m = N_act / N_total")

    @property
    def loop_block(self) -> FloatArray:
        """N_loop, which may be left out only where nothing loops."""
        if self.loop is not None:
            return self.loop
        if np.all(self.recurrence == 1):
            return np.zeros(np.shape(self.active))
        raise InputError("points: loop (N_loop) is needed where recurrence (R) is above 1")


def _checked(name: str, value: ArrayLike) -> FloatArray:
    symbol, wanted = _WANTED[name]
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"points: {name} ({symbol}) holds something that is not a number") from None
    least = 1.0 if wanted.startswith("1") else 0.0
    ok = np.isfinite(array) & ((array >= least) if wanted.endswith("or more") else (array > 0))
    if not ok.all():
        bad = array[~ok].flat[0] if array.ndim else array
        raise InputError(f"points: {name} ({symbol}) is {bad}; it should be finite and {wanted}")
    return array
