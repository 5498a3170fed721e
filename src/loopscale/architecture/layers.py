"""The parts of a layer: attention, feed-forward or experts, and what each of them counts and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from loopscale.core.errors import InputError, choice

Size: TypeAlias = Any
"""A whole number, or an array of real numbers on the continuous ladder."""
LARGEST = 10**12
"""The largest dimension that files may state."""


class QKNorm(Enum):
    """Where queries and keys are normalised before attention."""

    NONE = "none"
    HEAD = "head"
    """One weight per head dimension, shared by all heads (Qwen3)."""
    FULL = "full"
    """One weight per projected dimension (OLMoE)."""


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention."""

    heads: Size
    kv_heads: Size
    head_size: Size
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: QKNorm = QKNorm.NONE
    sinks: bool = False
    """A learned score per head that attends to nothing (gpt-oss)."""
    window: int | None = None
    """How many positions back a token sees; None for all."""
    qk_bias: bool = False
    """A bias per head for queries and keys alone (Huginn); it has no form for fewer key heads than query heads."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "qk_norm", choice(QKNorm, self.qk_norm, "qk_norm"))

    def matrices(self, width: Size) -> Size:
        """Return the weights of the four projections."""
        return 2 * width * self.head_size * (self.heads + self.kv_heads)

    def vectors(self, width: Size) -> Size:
        """Return the biases, sinks and query and key norms."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        total = self.qkv_bias * (queries + 2 * keys) + self.output_bias * width + self.sinks * self.heads
        total = total + self.qk_bias * 2 * queries
        if self.qk_norm is QKNorm.HEAD:
            return total + 2 * self.head_size
        return total + (queries + keys if self.qk_norm is QKNorm.FULL else 0)

    def score_flops(self, positions: float) -> Size:
        """Return the FLOPs of scores and weighted values for one token that attends to ``positions``."""
        return 4 * self.heads * self.head_size * positions

    def cached(self) -> Size:
        """Return the numbers that one token leaves in the KV cache."""
        return 2 * self.kv_heads * self.head_size


@dataclass(frozen=True)
class LatentAttention:
    """DeepSeek's multi-head latent attention: keys and values from one compressed state per token."""

    heads: int
    query_rank: int | None
    kv_rank: int
    nope_size: int
    rope_size: int
    value_size: int
    bias: bool = False
    window: int | None = None

    def matrices(self, width: Size) -> Size:
        """Return the weights of the projections down, up and out."""
        queries = self.heads * (self.nope_size + self.rope_size)
        q = width * queries if self.query_rank is None else self.query_rank * (width + queries)
        kv_down = width * (self.kv_rank + self.rope_size)
        kv_up = self.kv_rank * self.heads * (self.nope_size + self.value_size)
        return q + kv_down + kv_up + self.heads * self.value_size * width

    def vectors(self, width: Size) -> Size:
        """Return the norms of the compressed states and the biases of the projections that have one."""
        norms = (self.query_rank or 0) + self.kv_rank
        biases = (self.query_rank or 0) + self.kv_rank + self.rope_size + width
        return norms + self.bias * biases

    def score_flops(self, positions: float) -> Size:
        """Return the FLOPs of scores and weighted values for one token that attends to ``positions``."""
        return 2 * self.heads * (self.nope_size + self.rope_size + self.value_size) * positions

    def cached(self) -> Size:
        """Return the numbers that one token leaves in the KV cache: the compressed state, not keys and values.

        So do the serving engines and transformers; the releases of transformers that expand first hold
        ``heads * (nope_size + rope_size + value_size)`` numbers instead.
        """
        return self.kv_rank + self.rope_size


@dataclass(frozen=True)
class FeedForward:
    """A dense feed-forward block; gated is SwiGLU's three matrices, otherwise two."""

    hidden: Size
    gated: bool = True
    bias: bool = False

    def stored(self, width: Size) -> Size:
        """Return all weights, biases included."""
        return (3 if self.gated else 2) * width * self.hidden + self.bias * self.vectors(width)

    def active(self, width: Size) -> Size:
        """Return the weights that one token uses: all of them."""
        return self.stored(width)

    def vectors(self, width: Size) -> Size:
        """Return how many biases there are when there are any."""
        return (2 if self.gated else 1) * self.hidden + width

    def router(self, width: Size) -> Size:
        """Return the router's weights: none."""
        return 0


@dataclass(frozen=True)
class MixtureOfExperts:
    """Routed experts, of which each token uses a few, with shared ones beside them if wanted."""

    routed: Size
    active_experts: Size
    hidden: Size
    """Width of one expert."""
    shared_hidden: Size = 0
    """Width of the experts that every token uses, together."""
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False

    def __post_init__(self) -> None:
        if np.any(np.asarray(self.active_experts) > np.asarray(self.routed)):
            counts = f"'active_experts' is {self.active_experts} and 'routed' {self.routed}"
            raise InputError(f"{counts}; a token cannot use more experts than there are")

    @property
    def experts(self) -> Size:
        """E = E_route / k: routed experts for each active one."""
        return self.routed / self.active_experts

    def stored(self, width: Size) -> Size:
        """Return the weights of every expert, shared ones included."""
        return self.routed * self._expert(width) + 3 * width * self.shared_hidden

    def active(self, width: Size) -> Size:
        """Return the weights that one token uses."""
        return self.routed_active(width) + 3 * width * self.shared_hidden

    def routed_active(self, width: Size) -> Size:
        """Return the weights of the routed experts that one token uses."""
        return self.active_experts * self._expert(width)

    def router(self, width: Size) -> Size:
        """Return the router's weights and, with a shared gate, that gate's."""
        return self.routed * (width + self.router_bias) + self.shared_gate * width

    def _expert(self, width: Size) -> Size:
        return FeedForward(self.hidden, bias=self.bias).stored(width)


@dataclass(frozen=True)
class Layer:
    """Attention and feed-forward with their norms."""

    attention: Attention | LatentAttention
    feed_forward: FeedForward | MixtureOfExperts
    norms: int = 2
    """Norms of the model's width, one weight per dimension."""
    norm_bias: bool = False

    def norm_parameters(self, width: Size) -> Size:
        """Return the weights of the layer's norms."""
        return self.norms * (1 + self.norm_bias) * width

    def active(self, width: Size) -> Size:
        """Return the weights that one token passes through once, router apart."""
        return self._outside_experts(width) + self.feed_forward.active(width)

    def stored(self, width: Size) -> Size:
        """Return all weights, router apart."""
        return self._outside_experts(width) + self.feed_forward.stored(width)

    def router(self, width: Size) -> Size:
        """Return the router's weights."""
        return self.feed_forward.router(width)

    def matmul_flops(self, width: Size, padding: Size = 1.0) -> Size:
        """Return the FLOPs of all matrix products for one token, attention scores apart.

        ``padding`` is how many rows the routed experts compute for each row that was sent to them.
        """
        feed_forward = self.feed_forward.active(width)
        if isinstance(self.feed_forward, MixtureOfExperts) and np.any(np.asarray(padding) != 1):
            feed_forward = feed_forward + (padding - 1) * self.feed_forward.routed_active(width)
        return 2 * (self.attention.matrices(width) + feed_forward + self.router(width))

    def seen(self, positions: float) -> float:
        """Return how many of ``positions`` the attention reaches."""
        window = self.attention.window
        return positions if window is None else min(positions, window)

    def mean_seen(self, context: float) -> float:
        """Return how many positions a token sees on average over a causal sequence of ``context``."""
        window = self.attention.window
        if window is None or context <= window:
            return (context + 1) / 2
        return (window * (window + 1) / 2 + (context - window) * window) / context

    def _outside_experts(self, width: Size) -> Size:
        return self.attention.matrices(width) + self.attention.vectors(width) + self.norm_parameters(width)


KINDS: Mapping[type[Any], str] = {
    Attention: "grouped", LatentAttention: "latent", FeedForward: "dense", MixtureOfExperts: "mixture",
}  # fmt: skip
"""What files call the parts that a layer has a choice of."""
