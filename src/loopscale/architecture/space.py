"""Grids of candidate designs. Shapes: S sizes, K expert counts, P recurrences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from loopscale.architecture.architecture import Architecture
from loopscale.architecture.ladder import (
    RUNG_EXPERTS,
    RUNG_RECURRENCES,
    RUNGS,
    at_width,
    continuous,
    extended_rungs,
    rung,
)
from loopscale.core.arrays import FloatArray, IntArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_count
from loopscale.scaling import costs

CONTINUOUS_WIDTHS = (256.0, 4096.0, 513)
"""Lowest and highest width of the continuous ladder and how many there are: steps of half a percent."""
GENERIC_SIZES = (1e6, 1e13, 3225)
"""The same for models of which only the parameter count is known."""
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
    """(S x K) models row by row, or one continuous model whose counts are (S, K) arrays; empty for bare sizes."""
    recurrences: IntArray
    """(P), rising"""
    width: FloatArray
    layers: FloatArray
    experts: FloatArray
    active: FloatArray
    loop: FloatArray
    total: FloatArray
    embedding: FloatArray
    parameters: FloatArray
    """Every parameter of a model, as it is built."""
    kind: str = "models"
    """What the sizes are: ladder, widths, continuous, sizes (bare parameter counts) or models."""
    free: frozenset[str] = frozenset()
    """Axes (size, experts, recurrence) that were not set; a search may extend the sizes if they are among them."""
    active_experts: int = 2
    overheads: Mapping[tuple[str, float, int], float] = field(default_factory=dict)
    """FLOPs that devices spend for each planned FLOP of training, by size, experts and recurrence: 1 by default,
    infinite for a design that the devices cannot train."""

    @classmethod
    def of(
        cls, names: Sequence[str], models: Sequence[Architecture], recurrences: Sequence[int], kind: str = "models"
    ) -> Space:
        """Return the space of ``models``, given row by row: each size with its expert counts."""
        if not names or not models:
            raise InputError("the design space is empty; give at least one size and one expert count")
        fields = ("width", "layers", "experts", "active", "loop", "total", "embedding", "parameters")
        arrays: dict[str, Any] = {name: _counts(models, name).reshape(len(names), -1) for name in fields}
        passes = np.array(_rising("recurrence", recurrences), dtype=np.int64)
        return cls(tuple(names), tuple(models), passes, **arrays, kind=kind)

    @property
    def shape(self) -> tuple[int, ...]:
        """(S, K, P)"""
        return (*self.active.shape, len(self.recurrences))

    @property
    def expert_counts(self) -> tuple[float, ...]:
        """The expert counts that sizes share, rising."""
        return tuple(sorted(set(self.experts.ravel().tolist())))

    def model(self, s: int, k: int) -> Architecture | None:
        """Return the model of a size and an expert count; None where the sizes have no models of their own."""
        return self.models[s * self.active.shape[1] + k] if len(self.models) == self.active.size else None

    def unrolled(self, recurrences: ArrayLike | None = None) -> FloatArray:
        """Return N_unroll on the grid (S, K, P)."""
        passes = np.asarray(self.recurrences if recurrences is None else recurrences, float)
        return np.asarray(costs.unrolled(self.active[..., None], self.loop[..., None], passes))

    def kv_bytes(
        self, *, context: int, batch: int, bits: float, kept_passes: int | None, kept_window: int | None = None
    ) -> FloatArray:
        """Return the KV cache of every candidate, (S, K, P), kept as ``Architecture.kv_bytes`` describes."""
        if not self.models:
            raise InputError(
                "a model known by its size alone has no KV cache", field="context",
                remedy="plan over rungs, widths or a config instead",
            )  # fmt: skip
        return self._of_models(
            lambda model, passes: model.kv_bytes(
                passes, context=context, batch=batch, bits=bits, kept_passes=kept_passes, kept_window=kept_window
            ),
            self.recurrences,
        )

    def output_head(self) -> FloatArray:
        """Return the weights of the output head, (S, K); none for models that are known by their size alone."""
        if not self.models:
            return np.zeros(self.active.shape)
        vocabulary = np.array([model.vocabulary for model in self.models], float)
        return np.asarray(self.width * (vocabulary.reshape(self.active.shape) if len(self.models) > 1 else vocabulary))

    def real_train_flops(
        self, recurrences: IntArray, *, context: int, padding: Callable[[Architecture], float]
    ) -> FloatArray:
        """Return the real training FLOPs of a token on (S, K, P), without recomputation.

        ``padding`` gives the rows that experts compute for each routed one. Models of which only the size is known
        have 6 N.
        """
        if not self.models:
            return np.asarray(costs.train_flops(self.unrolled(recurrences)))
        return self._of_models(
            lambda model, passes: model.real_train_flops_per_token(passes, context=context, padding=padding(model)),
            recurrences,
        )

    def _of_models(self, cost: Callable[[Architecture, FloatArray], Any], recurrences: IntArray) -> FloatArray:
        """Return a cost of every model at each recurrence, on (S, K, P)."""
        per_model = [
            cost(model, recurrences.astype(float).reshape(-1, *(1,) * np.ndim(model.active))) for model in self.models
        ]
        return np.moveaxis(np.asarray(per_model, float), 1, -1).reshape(*self.active.shape, len(recurrences))

    def overhead(self, recurrences: IntArray) -> FloatArray:
        """Return the overheads of training on the grid (S, K, P)."""
        overhead_SKP = np.ones((*self.active.shape, len(recurrences)))
        for s, k, p in np.ndindex(overhead_SKP.shape if self.overheads else (0, 0, 0)):
            key = (self.names[s], float(self.experts[s, k]), int(recurrences[p]))
            overhead_SKP[s, k, p] = self.overheads.get(key, 1.0)
        return overhead_SKP

    def extended(self, upward: bool) -> Space | None:
        """Return the space with further sizes by the same rule; None where the sizes are not free or have an end."""
        more = self._more_sizes(upward) if "size" in self.free else []
        if not more:
            return None
        own: list[Any] = list(self.names) if self.kind == "ladder" else self.width[:, 0].tolist()
        sizes, passes = [*own, *more] if upward else [*more, *own], self.recurrences.tolist()
        if self.kind == "ladder":
            wider = ladder_space(sizes, self.expert_counts, passes, self.active_experts, self.free)
        else:
            wider = continuous_space(self.expert_counts, passes, sizes, self.free)
        return replace(wider, overheads=self.overheads)

    def _more_sizes(self, upward: bool) -> list[Any]:
        """Return the next sizes beyond the largest or the smallest."""
        if self.kind == "ladder":
            ladder = list(extended_rungs())
            if not upward:
                return ladder[: ladder.index(self.names[0])]
            start = ladder.index(self.names[-1]) + 1
            return ladder[start : start + 12]
        if self.kind != "continuous":
            return []
        low, high, count = CONTINUOUS_WIDTHS
        steps = np.exp(np.arange(1, count // 2) * np.log(high / low) / (count - 1))
        widths = self.width[:, 0]
        limits = widths[-1] * steps if upward else widths[0] / steps[::-1]
        return [float(width) for width in limits if 64 <= width <= 65536]


def ladder_space(
    rungs: Sequence[str] = tuple(RUNGS),
    experts: Sequence[float] = RUNG_EXPERTS,
    recurrences: Sequence[int] = RUNG_RECURRENCES,
    active_experts: int = 2,
    free: Iterable[str] = (),
) -> Space:
    """Return the paper's design space, or a part of it: 5 rungs x 6 expert counts x 10 recurrences by default.

    ``free`` names the axes that were not set: a plan may extend the sizes if they are among them.
    """
    rows = _rising("experts", experts)
    check_candidates(len(rungs) * len(rows) * len(recurrences))
    space = _ladder_space(tuple(rungs), tuple(rows), tuple(recurrences), active_experts)
    return replace(space, free=frozenset(free))


@lru_cache(maxsize=64)
def _ladder_space(
    rungs: tuple[str, ...], experts: tuple[float, ...], recurrences: tuple[int, ...], active_experts: int
) -> Space:
    """Count the models of a part of the ladder; one plan and its charts ask for the same parts many times."""
    models = [rung(name, count, active_experts) for name in rungs for count in experts]
    space = Space.of([model.name for model in models[:: len(experts)]], models, recurrences, "ladder")
    for array in (space.recurrences, space.width, space.layers, space.experts, space.active, space.loop, space.total):
        array.flags.writeable = False  # it is shared
    return replace(space, active_experts=active_experts)


def width_space(
    widths: Sequence[int],
    experts: Sequence[float] = RUNG_EXPERTS,
    recurrences: Sequence[int] = RUNG_RECURRENCES,
    active_experts: int = 2,
    layers: int | None = None,
) -> Space:
    """Return models of other widths by the ladder's rules; their depth follows the width unless given."""
    rows = _rising("experts", experts)
    check_candidates(len(widths) * len(rows) * len(recurrences))
    models = [at_width(d, layers, experts=count, active_experts=active_experts) for d in widths for count in rows]
    space = Space.of([model.name for model in models[:: len(rows)]], models, recurrences, "widths")
    return replace(space, active_experts=active_experts)


def continuous_space(
    experts: Sequence[float] = RUNG_EXPERTS,
    recurrences: Sequence[int] = RUNG_RECURRENCES,
    widths: ArrayLike | None = None,
    free: Iterable[str] = (),
) -> Space:
    """Return the ladder without its gaps: many real-valued widths, which need not be buildable."""
    d = np.asarray(np.geomspace(*CONTINUOUS_WIDTHS) if widths is None else widths, float)
    check_candidates(len(d) * len(experts) * len(recurrences))
    model = continuous(d[:, None], np.asarray(_rising("experts", experts))[None, :])
    space = Space.of([f"d{width:.0f}" for width in d], [model], recurrences, "continuous")
    return replace(space, free=frozenset(free))


def size_space(sizes: ArrayLike | None = None) -> Space:
    """Return dense models of which only the parameter count is known, for laws of size and tokens alone.

    Embeddings are not counted separately: a size is what the law counts, and compute is 6ND with the same N.
    """
    N = np.asarray(np.geomspace(*GENERIC_SIZES) if sizes is None else sizes, float).reshape(-1, 1)
    if not N.size or not (np.isfinite(N).all() and (N > 0).all()):
        raise InputError("the design space takes sizes above zero; give at least one")
    nothing, unknown, one = np.zeros_like(N), np.full_like(N, np.nan), np.ones_like(N)
    names = tuple(format_count(float(value)) for value in N[:, 0])
    return Space(names, (), np.array([1]), unknown, unknown, one, N, nothing, N, nothing, N, kind="sizes")


def architecture_space(models: Sequence[Architecture], recurrences: Sequence[int] = RUNG_RECURRENCES) -> Space:
    """Return the space of these models, each with its own experts; a model without a loop stays at R = 1."""
    if max(recurrences) > 1 and not any(model.loop for model in models):
        raise InputError(f"{models[0].name}: this model has no loop block; ask for recurrence 1 only")
    return Space.of([model.name for model in models], models, recurrences)


def check_candidates(candidates: int, laws: int = 1) -> None:
    """Refuse a space that would not fit in memory, before it is built."""
    if candidates * laws > LARGEST:
        many = f"{candidates:,} candidates" + (f" under {laws:,} laws" if laws > 1 else "")
        raise InputError(f"the design space is too large: {many}; at most {LARGEST:,} evaluations fit in one plan")


def _counts(models: Sequence[Architecture], name: str) -> FloatArray:
    """Return one count of all models; a continuous model's scalars spread over its arrays."""
    if len(models) == 1:
        shape = np.asarray(models[0].active, float).shape
        return np.array(np.broadcast_to(np.asarray(getattr(models[0], name), float), shape))
    return np.array([float(getattr(model, name)) for model in models])


def _rising(what: str, values: Sequence[float]) -> list[float]:
    rising = sorted(set(values))
    if not rising or not (np.isfinite(rising).all() and rising[0] >= 1):
        raise InputError(f"{what}: {list(values)} should be one or more numbers from 1 up")
    return rising
