"""An architecture: exact counts and costs of a model before it exists."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from loopscale.architecture.layers import KINDS, Attention, Layer, MixtureOfExperts, Size
from loopscale.core.errors import InputError, choice, shown
from loopscale.core.files import read_json, write_json
from loopscale.core.quantities import format_size
from loopscale.core.tables import Table
from loopscale.scaling import Counting, Points, costs

SCHEMA = 1


@dataclass(frozen=True)
class Stack:
    """The same layer, several times over."""

    layer: Layer
    count: Size


@dataclass(frozen=True)
class PassParts:
    """Parts of the looped layers that each pass has for itself, where the plain loop shares them."""

    passes: int
    """Passes with their own parts; the parts of the first are those of the layers."""
    norms: bool = False
    attention: bool = False
    """Its own projections."""
    rank: int = 0
    """Rank of the adapters that a pass adds to shared projections; 0 for none."""
    router: bool = False

    def adapters(self, layer: Layer, width: Size) -> Size:
        """Return the weights of one pass's adapters, which it uses beyond those of the layer."""
        attention = layer.attention
        if not self.rank or not isinstance(attention, Attention):
            return 0
        heads = attention.head_size * attention.heads, attention.head_size * (attention.heads + 2 * attention.kv_heads)
        return self.rank * (2 * width + sum(heads))

    def stored(self, layer: Layer, width: Size) -> Size:
        """Return the weights of one pass after the first, routers apart."""
        own = self.attention * layer.attention.matrices(width) + self.adapters(layer, width)
        return own + self.norms * layer.norm_parameters(width)


@dataclass(frozen=True)
class Architecture:
    """A model's dimensions, and everything that follows from them.

    Counts named as in the paper (``active``, ``loop``, ``total``, ``m``) leave out embeddings and routers, as
    its law does; ``parameters`` is every weight of the built model. Costs come in two readings: the paper's
    (``6 N_unroll`` and ``2 N_unroll`` a token), and the real one with output head, routers, attention scores
    and per-loop supervision.
    """

    width: Size
    """d_m"""
    vocabulary: int
    tied: bool
    """Whether input and output embeddings are one matrix."""
    prelude: tuple[Stack, ...] = ()
    """Layers run once, before the loop. A model that does not loop has all its layers here."""
    loop_block: tuple[Stack, ...] = ()
    """Layers run R times."""
    coda: tuple[Stack, ...] = ()
    """Layers run once, after the loop."""
    recurrence: int = 1
    """R that the model is built for; every cost can be asked at another."""
    injection: Size = 0
    """Weights of the adapter that feeds the input back in at each pass."""
    other: Size = 0
    """Weights outside the layers: final norm, exit gates, position tables."""
    name: str = "model"
    pass_parts: PassParts | None = None
    """Parts that each pass has for itself; None where all passes share everything."""
    gate: Size = 0
    """Weights of a gate that reads the state after each pass, for early exit."""

    def __post_init__(self) -> None:
        if self.recurrence < 1:
            raise InputError(f"{self.name}: recurrence is {self.recurrence}; it should be 1 or more")

    @property
    def layers(self) -> Size:
        """n_l: stored layers."""
        return sum(stack.count for stack in self._stacks())

    @property
    def active(self) -> Size:
        """N_act: weights that a token passes through once."""
        return self._sum(self._stacks(), Layer.active) + self.injection

    @property
    def loop(self) -> Size:
        """N_loop: the active weights of the loop block."""
        return self._sum(self.loop_block, Layer.active) + self.injection

    @property
    def total(self) -> Size:
        """N_total: all stored weights of the layers."""
        return self._sum(self._stacks(), Layer.stored) + self.injection + self.pass_weights

    @property
    def m(self) -> Size:
        """The active ratio N_act / N_total; 1 for a dense model."""
        return self.active / self.total

    @property
    def embedding(self) -> Size:
        """Stored embedding weights: once when tied, else input and output."""
        return self.vocabulary * self.width * (1 if self.tied else 2)

    @property
    def router(self) -> Size:
        """Weights of all routers."""
        return self._sum(self._stacks(), Layer.router) + self._of_later_passes(
            lambda parts, layer, width: parts.router * layer.router(width)
        )

    @property
    def norms(self) -> Size:
        """Weights of the layers' norms."""
        return self._sum(self._stacks(), Layer.norm_parameters) + self._of_later_passes(
            lambda parts, layer, width: parts.norms * layer.norm_parameters(width)
        )

    @property
    def pass_weights(self) -> Size:
        """Weights that the passes after the first have for themselves, routers apart."""
        return self._of_later_passes(PassParts.stored)

    @property
    def parameters(self) -> Size:
        """Every weight of the built model."""
        return self.total + self.embedding + self.router + self.other + self.gate

    @property
    def experts(self) -> Size:
        """E: routed experts for each active one, in the layers that route; 1 for a dense model."""
        mixture = self._mixture()
        return 1 if mixture is None else mixture.experts

    @property
    def active_experts(self) -> Size:
        """k: routed experts that a token uses, in the layers that route; 1 for a dense model."""
        mixture = self._mixture()
        return 1 if mixture is None else mixture.active_experts

    @property
    def routed_experts(self) -> Size:
        """Routed experts of a layer as it is built, k E, in the layers that route; 1 for a dense model."""
        mixture = self._mixture()
        return 1 if mixture is None else mixture.routed

    def unrolled(self, recurrence: ArrayLike | None = None) -> Size:
        """Return N_unroll = N_act + (R - 1) N_loop (eq. unroll)."""
        passes = self._passes(recurrence)
        return costs.unrolled(self.active, self.loop, passes) + (passes - 1) * self._adapters()

    def train_flops_per_token(self, recurrence: ArrayLike | None = None) -> Size:
        """Return the paper's training cost of one token, 6 N_unroll."""
        return costs.train_flops(self.unrolled(recurrence))

    def inference_flops_per_token(self, recurrence: ArrayLike | None = None) -> Size:
        """Return the paper's inference cost of one token, 2 N_unroll."""
        return costs.inference_flops(self.unrolled(recurrence))

    def real_train_flops_per_token(
        self,
        recurrence: ArrayLike | None = None,
        *,
        context: int,
        per_loop_supervision: bool = False,
        backprop_passes: int | None = None,
        padding: Size = 1.0,
        recomputed: float = 0.0,
    ) -> Size:
        """Return the real training cost of one token in a causal sequence of ``context``: three forwards.

        Per-loop supervision runs the coda and the output head after every pass. Passes before the last
        ``backprop_passes`` have no backward, which is two of the three forwards. ``padding`` is how many rows the
        experts compute for each routed one, as drop-and-pad does at its capacity factor; ``recomputed`` is the share
        of block calls whose forward runs again in backward.
        """
        passes = self._passes(recurrence)
        exits = passes if per_loop_supervision else 1
        cost = partial(self._forward, seen=lambda layer: layer.mean_seen(context), padding=padding)
        head = exits * 2 * self.width * self.vocabulary
        blocks = cost(self.prelude) + self._loop_cost(cost, passes) + exits * cost(self.coda)
        whole = 3 * (blocks + head) + recomputed * blocks
        if backprop_passes is None:
            return whole
        return whole - (2 + recomputed) * self._loop_cost(cost, np.maximum(passes - backprop_passes, 0))

    def real_inference_flops_per_token(self, recurrence: ArrayLike | None = None, *, context: int) -> Size:
        """Return the real cost of one generated token that attends to ``context`` positions."""
        cost = partial(self._forward, seen=lambda layer: layer.seen(context))
        head = 2 * self.width * self.vocabulary
        return cost(self.prelude) + self._loop_cost(cost, self._passes(recurrence)) + (cost(self.coda) + head)

    def weight_bytes(self, bits: float, *, routers: bool = False) -> Size:
        """Return the memory of the weights, embeddings included: the paper's M_weight.

        The paper counts no routers; with ``routers`` the whole built model is counted.
        """
        return (self.parameters if routers else self.total + self.embedding) * bits / 8

    def kv_bytes(
        self,
        recurrence: ArrayLike | None = None,
        context: int | None = None,
        *,
        batch: int = 1,
        bits: float = 16,
        kept_passes: int | None = None,
        kept_window: int | None = None,
    ) -> Size:
        """Return the memory of the KV cache at ``recurrence`` (None: the model's own).

        Each pass through a looped layer has its own keys and values. ``kept_passes`` keeps those of at most so many
        passes (1: all passes share one slot), ``kept_window`` those of later passes for the last tokens only. A
        windowed layer keeps its window (transformers: one position less between steps), latent attention its
        compressed state.
        """
        if context is None or context < 0:
            raise InputError(
                f"context is {context}", where=self.name, remedy="the KV cache needs zero or more tokens of context"
            )
        passes = self._passes(recurrence)
        slots = passes if kept_passes is None else np.minimum(passes, kept_passes)
        recent = context if kept_window is None else np.minimum(context, kept_window)
        loop = self._cached(self.loop_block, context) + (slots - 1) * self._cached(self.loop_block, recent)
        cached = self._cached(self.prelude, context) + loop
        return (cached + self._cached(self.coda, context)) * batch * bits / 8

    def points(
        self,
        tokens: ArrayLike,
        recurrence: ArrayLike | None = None,
        counts: Counting | str = Counting.WITHOUT_EMBEDDINGS,
    ) -> Points:
        """Return this model as a law sees it, with embeddings counted or not as the law wants."""
        return choice(Counting, counts, "counts").points(
            active=self.active,
            tokens=tokens,
            recurrence=self._passes(recurrence),
            experts=self.experts,
            loop=self.loop,
            total=self.total,
            embedding=self.embedding,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the architecture as plain values, ready for JSON."""
        return {"kind": "architecture", "schema": SCHEMA, **_as_json(self, self.name)}

    @classmethod
    def from_dict(cls, data: object, where: str = "architecture") -> Architecture:
        """Read an architecture from plain values; ``where`` names their origin in errors."""
        from loopscale.architecture.schema import read_architecture  # pydantic is slow to import

        architecture = read_architecture(data, where)
        if not architecture.layers:
            raise InputError(f"{where}: it has no layers; 'prelude', 'loop_block' or 'coda' should hold some")
        return architecture

    def save(self, path: str | Path) -> None:
        """Write the architecture as JSON."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Architecture:
        """Read an architecture that ``save`` wrote, or one written by hand in that form."""
        return cls.from_dict(read_json(path), str(path))

    def table(self) -> Table:
        """Return the counts: ``count, value``."""
        names = ("parameters", "active", "loop", "total", "embedding", "router")
        return Table({"count": list(names), "value": [getattr(self, name) for name in names]})

    def __repr__(self) -> str:
        if np.ndim(self.width):
            return f"<Architecture {self.name!r}: {np.size(self.width)} widths>"
        looped = f", R = {self.recurrence}" if self.recurrence > 1 else ""
        counts = f"{format_size(self.active)} active, {format_size(self.total)} total"
        shape = f"width {self.width:g}, {self.layers:g} layers, E = {self.experts:g}{looped}"
        return f"<Architecture {self.name!r}: {shape}, {counts}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self)[1:-1])}</p>" + (self.table()._repr_html_() if not np.ndim(self.width) else "")

    def _mixture(self) -> MixtureOfExperts | None:
        """Return the experts of the first layer that routes."""
        routed = (s.layer.feed_forward for s in self._stacks() if isinstance(s.layer.feed_forward, MixtureOfExperts))
        return next(routed, None)

    def _stacks(self) -> Iterator[Stack]:
        yield from self.prelude
        yield from self.loop_block
        yield from self.coda

    def _passes(self, recurrence: ArrayLike | None) -> Size:
        passes = self.recurrence if recurrence is None else recurrence
        if np.any(np.asarray(passes) < 1):
            raise InputError(f"{self.name}: recurrence is {passes}; it should be 1 or more")
        return passes if isinstance(passes, int) else np.asarray(passes)

    def _sum(self, stacks: Iterator[Stack] | tuple[Stack, ...], count: Callable[[Layer, Size], Size]) -> Size:
        return sum(stack.count * count(stack.layer, self.width) for stack in stacks)

    def _forward(self, stacks: tuple[Stack, ...], seen: Callable[[Layer], float], padding: Size = 1.0) -> Size:
        """Return the FLOPs of one token through layers that attend to so many positions as ``seen`` says."""
        return self._sum(
            stacks,
            lambda layer, width: layer.matmul_flops(width, padding) + layer.attention.score_flops(seen(layer)),
        )

    def _loop_cost(self, cost: Callable[[tuple[Stack, ...]], Size], passes: Size) -> Size:
        return (
            passes * (cost(self.loop_block) + 2 * (self.injection + self.gate))
            + 2 * np.maximum(passes - 1, 0) * self._adapters()
        )

    def _adapters(self) -> Size:
        """Return the weights that a pass after the first uses beyond those of the first."""
        parts = self.pass_parts
        if parts is None or parts.passes == 1:
            return 0
        return self._sum(self.loop_block, parts.adapters)

    def _of_later_passes(self, count: Callable[[PassParts, Layer, Size], Size]) -> Size:
        parts = self.pass_parts
        if parts is None:
            return 0
        return (parts.passes - 1) * self._sum(self.loop_block, partial(count, parts))

    def _cached(self, stacks: tuple[Stack, ...], context: int) -> Size:
        return self._sum(stacks, lambda layer, _: layer.attention.cached() * layer.seen(context))


def _as_json(value: Any, name: str) -> Any:
    """Return a value of an architecture as JSON has it; real-valued sizes have no file."""
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_as_json(item, name) for item in value]
    if is_dataclass(value):
        kind = {"kind": KINDS[type(value)]} if type(value) in KINDS else {}
        return kind | {field.name: _as_json(getattr(value, field.name), field.name) for field in fields(value)}
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{name} is {shown(value)}; only a model of whole dimensions can be saved") from None
