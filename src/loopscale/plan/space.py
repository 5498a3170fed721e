"""The designs that a plan chooses from: sizes x experts x recurrences, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from loopscale.architecture import RUNG_EXPERTS, RUNG_RECURRENCES, RUNGS, Architecture, at_width, continuous, rung
from loopscale.arrays import FloatArray, IntArray
from loopscale.errors import InputError

CONTINUOUS_WIDTHS = (256.0, 4096.0, 513)
"""Lowest and highest width of the continuous ladder and how many there are: steps of half a percent."""
LARGEST = 20_000_000
"""Candidates times laws that one evaluation takes: a few arrays of that size stay within some gigabytes."""


@dataclass(frozen=True, eq=False)
class Space:
    """Candidate designs on a grid of S sizes, K expert counts and P recurrences.

    Counts are (S, K): recurrence changes no stored weight.
    """

    names: tuple[str, ...]
    """(S) sizes by name"""
    models: tuple[Architecture, ...]
    """(S x K) models row by row, or one continuous model whose counts are (S, K) arrays."""
    recurrences: IntArray
    """(P), rising"""
    width: FloatArray
    layers: FloatArray
    experts: FloatArray
    active: FloatArray
    loop: FloatArray
    total: FloatArray
    embedding: FloatArray

    @classmethod
    def of(cls, names: Sequence[str], models: Sequence[Architecture], recurrences: Sequence[int]) -> Space:
        """Return the space of ``models``, given row by row: each size with its expert counts."""
        if not names or not models:
            raise InputError("the design space is empty; give at least one size and one expert count")
        fields = ("width", "layers", "experts", "active", "loop", "total", "embedding")
        arrays = {name: _counts(models, name).reshape(len(names), -1) for name in fields}
        passes = np.array(_rising("recurrence", recurrences), dtype=np.int64)
        return cls(tuple(names), tuple(models), passes, **arrays)

    @property
    def shape(self) -> tuple[int, ...]:
        """(S, K, P)"""
        return (*self.active.shape, len(self.recurrences))

    def unrolled(self, recurrences: ArrayLike | None = None) -> FloatArray:
        """Return N_unroll on the grid (S, K, P)."""
        passes = np.asarray(self.recurrences if recurrences is None else recurrences, float)
        return self.active[..., None] + (passes - 1.0) * self.loop[..., None]

    def kv_bytes(self, *, context: int, batch: int, bits: float, kept_passes: int | None) -> FloatArray:
        """Return the KV cache of every candidate, (S, K, P)."""
        sizes = [
            [
                model.kv_bytes(int(R), context=context, batch=batch, bits=bits, kept_passes=kept_passes)
                for R in self.recurrences
            ]
            for model in self.models
        ]
        return np.moveaxis(np.asarray(sizes, float), 1, -1).reshape(self.shape)


def ladder_space(
    rungs: Sequence[str] = tuple(RUNGS),
    experts: Sequence[float] = RUNG_EXPERTS,
    recurrences: Sequence[int] = RUNG_RECURRENCES,
    active_experts: int = 2,
) -> Space:
    """Return the paper's design space, or a part of it: 5 rungs x 6 expert counts x 10 recurrences by default."""
    rows = _rising("experts", experts)
    check_size(len(rungs) * len(rows) * len(recurrences))
    models = [rung(name, each, active_experts) for name in rungs for each in rows]
    return Space.of([model.name for model in models[:: len(rows)]], models, recurrences)


def width_space(
    widths: Sequence[int],
    experts: Sequence[float] = RUNG_EXPERTS,
    recurrences: Sequence[int] = RUNG_RECURRENCES,
    active_experts: int = 2,
    layers: int | None = None,
) -> Space:
    """Return models of other widths by the ladder's rules; their depth follows the width unless given."""
    rows = _rising("experts", experts)
    check_size(len(widths) * len(rows) * len(recurrences))
    models = [at_width(d, layers, experts=each, active_experts=active_experts) for d in widths for each in rows]
    return Space.of([model.name for model in models[:: len(rows)]], models, recurrences)


def continuous_space(
    experts: Sequence[float] = RUNG_EXPERTS,
    recurrences: Sequence[int] = RUNG_RECURRENCES,
    widths: ArrayLike | None = None,
) -> Space:
    """Return the ladder without its gaps: many real-valued widths, which need not be buildable."""
    d = np.asarray(np.geomspace(*CONTINUOUS_WIDTHS) if widths is None else widths, float)
    check_size(len(d) * len(experts) * len(recurrences))
    model = continuous(d[:, None], np.asarray(_rising("experts", experts))[None, :])
    return Space.of([f"d{width:.0f}" for width in d], [model], recurrences)


def architecture_space(models: Sequence[Architecture], recurrences: Sequence[int] = RUNG_RECURRENCES) -> Space:
    """Return given models, each with its own experts; a model without a loop has R = 1 only."""
    for model in models:
        if model.loop == 0 and max(recurrences) > 1:
            raise InputError(f"{model.name}: this model has no loop block; ask for recurrence 1 only")
    return Space.of([model.name for model in models], models, recurrences)


def check_size(candidates: int, laws: int = 1) -> None:
    """Refuse a space that would not fit in memory, before it is built."""
    if candidates * laws > LARGEST:
        many = f"{candidates:,} candidates" + (f" under {laws:,} laws" if laws > 1 else "")
        raise InputError(f"the design space is too large: {many}; at most {LARGEST:,} evaluations fit in one plan")


def _counts(models: Sequence[Architecture], name: str) -> FloatArray:
    """Return one count of all models; a continuous model's scalars spread over its arrays."""
    if len(models) == 1:
        like = np.asarray(models[0].active, float)
        return np.array(np.broadcast_to(np.asarray(getattr(models[0], name), float), like.shape))
    return np.array([float(getattr(model, name)) for model in models])


def _rising(what: str, values: Sequence[float]) -> list[float]:
    rising = sorted(set(values))
    if not rising or not (np.isfinite(rising).all() and rising[0] >= 1):
        raise InputError(f"{what}: {list(values)} should be one or more numbers from 1 up")
    return rising
