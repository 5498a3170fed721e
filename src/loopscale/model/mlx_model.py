# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""The looped MoE in MLX, in the form that mlx-lm loads: embeddings, prelude, the loop block R times, coda, head.

``loopscale export --to mlx`` copies this file beside the weights, whose names are those of the PyTorch model. It needs
MLX alone; mlx-lm generates with it.

Shapes: B batch, T tokens, D width, N heads, h head size, E experts, K experts of a token.
"""

# No annotations from __future__: mlx-lm runs this file without a place in sys.modules, where dataclasses look them up.
from dataclasses import dataclass, fields
from typing import Any, Self

import mlx.core as mx
from mlx import nn


@dataclass
class ModelArgs:
    """Sizes and options, named as in the PyTorch model's config."""

    vocab_size: int
    hidden_size: int
    prelude_layers: int
    loop_layers: int
    coda_layers: int
    recurrence: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    norm_topk_prob: bool
    router_score: str
    routed_scaling_factor: float
    qkv_bias: bool
    output_bias: bool
    qk_norm: str
    injection: str
    residual_power: float
    """What looped layers add to the state is multiplied by R to this power."""
    rms_norm_eps: float
    rope_periods: list[float]
    """Tokens for one radian of each rotary frequency."""
    tie_word_embeddings: bool
    model_type: str = "looped_moe"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read a config.json, which has other fields too."""
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})


class Slot:
    """Keys and values of one (pass, layer), where mlx-lm is not installed."""

    def __init__(self) -> None:
        self.keys: Any = None
        self.values: Any = None

    @property
    def offset(self) -> int:
        """Tokens so far."""
        return 0 if self.keys is None else int(self.keys.shape[2])

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Append and return everything."""
        self.keys = keys if self.keys is None else mx.concatenate((self.keys, keys), axis=2)
        self.values = values if self.values is None else mx.concatenate((self.values, values), axis=2)
        return self.keys, self.values


class SwiGLU(nn.Module):  # type: ignore[misc]
    """A dense SwiGLU block."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(width, 2 * hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def __call__(self, x: Any) -> Any:
        gate, up = mx.split(self.gate_up_proj(x), 2, axis=-1)
        return self.down_proj(nn.silu(gate) * up)


class Router(nn.Module):  # type: ignore[misc]
    """Gates in float32. The bias affects which experts are chosen, not how they are weighted."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.weight = mx.zeros((args.num_experts, args.hidden_size))
        self.e_score_correction_bias = mx.zeros((args.num_experts,))
        self._args = args

    def __call__(self, x: Any) -> tuple[Any, Any]:
        args = self._args
        logits = x.astype(mx.float32) @ self.weight.astype(mx.float32).T
        scores = mx.softmax(logits, axis=-1) if args.router_score == "softmax" else mx.sigmoid(logits)
        k = args.num_experts_per_tok
        chosen = mx.argpartition(-(scores + self.e_score_correction_bias), k - 1, axis=-1)[..., :k]
        weights = mx.take_along_axis(scores, chosen, axis=-1)
        if args.norm_topk_prob:
            weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)
        return weights * args.routed_scaling_factor, chosen


class Experts(nn.Module):  # type: ignore[misc]
    """All experts of a layer, as two arrays."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        E, D, H = args.num_experts, args.hidden_size, args.moe_intermediate_size
        self.gate_up_proj = mx.zeros((E, 2 * H, D))
        self.down_proj = mx.zeros((E, D, H))

    def __call__(self, x: Any, weights: Any, chosen: Any) -> Any:
        rows = mx.expand_dims(x, (-2, -3))
        hidden = mx.gather_mm(rows, self.gate_up_proj.swapaxes(-1, -2), rhs_indices=chosen)
        gate, up = mx.split(hidden, 2, axis=-1)
        out = mx.gather_mm(nn.silu(gate) * up, self.down_proj.swapaxes(-1, -2), rhs_indices=chosen).squeeze(-2)
        return (out * weights[..., None].astype(out.dtype)).sum(axis=-2)


class MoELayer(nn.Module):  # type: ignore[misc]
    """Router, experts and an optional shared expert that every token uses."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.router = Router(args)
        self.experts = Experts(args)
        hidden = args.shared_expert_intermediate_size
        if hidden:
            self.shared_expert = SwiGLU(args.hidden_size, hidden)

    def __call__(self, x: Any) -> Any:
        out = self.experts(x, *self.router(x))
        return out + self.shared_expert(x) if "shared_expert" in self else out


class Block(nn.Module):  # type: ignore[misc]
    """Pre-norm attention and feed-forward. A looped one is called once for each pass, with the slot of that pass."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        D, h, eps = args.hidden_size, args.head_dim, args.rms_norm_eps
        heads, kv_heads = args.num_attention_heads, args.num_key_value_heads
        self.input_layernorm = nn.RMSNorm(D, eps)
        self.qkv_proj = nn.Linear(D, (heads + 2 * kv_heads) * h, bias=args.qkv_bias)
        self.o_proj = nn.Linear(heads * h, D, bias=args.output_bias)
        if args.qk_norm != "none":
            full = args.qk_norm == "full"
            self.q_norm = nn.RMSNorm(h * heads if full else h, eps)
            self.k_norm = nn.RMSNorm(h * kv_heads if full else h, eps)
        self.post_attention_layernorm = nn.RMSNorm(D, eps)
        self.mlp = MoELayer(args) if args.num_experts > 1 else SwiGLU(D, args.intermediate_size)
        self._args, self._periods = args, mx.array(args.rope_periods)

    def __call__(self, x: Any, slot: Any, scale: float = 1.0) -> Any:
        args = self._args
        B, T, _ = x.shape
        qkv = self.qkv_proj(self.input_layernorm(x))
        queries, keys = args.num_attention_heads * args.head_dim, args.num_key_value_heads * args.head_dim
        query, key, value = mx.split(qkv, [queries, queries + keys], axis=-1)
        query, key = self._normed("q_norm", query), self._normed("k_norm", key)
        query, key, value = (
            part.reshape(B, T, -1, args.head_dim).transpose(0, 2, 1, 3) for part in (query, key, value)
        )
        start = slot.offset if slot is not None else 0
        query, key = self._rotated(query, start), self._rotated(key, start)
        if slot is not None:
            key, value = slot.update_and_fetch(key, value)
        mask = "causal" if T > 1 else None
        mixed = mx.fast.scaled_dot_product_attention(query, key, value, scale=args.head_dim**-0.5, mask=mask)
        x = x + scale * self.o_proj(mixed.transpose(0, 2, 1, 3).reshape(B, T, -1))
        return x + scale * self.mlp(self.post_attention_layernorm(x))

    def _normed(self, name: str, heads: Any) -> Any:
        """Return queries or keys, normalised over each head or over all of them if the model has such norms."""
        if name not in self:
            return heads
        norm = self[name]
        return norm(heads.reshape(*heads.shape[:-1], -1, norm.weight.shape[0])).reshape(heads.shape)

    def _rotated(self, heads: Any, start: int) -> Any:
        size = self._args.head_dim
        return mx.fast.rope(heads, size, traditional=False, base=None, scale=1.0, offset=start, freqs=self._periods)


class Model(nn.Module):  # type: ignore[misc]
    """The model with its output head."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args = args
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.prelude = [Block(args) for _ in range(args.prelude_layers)]
        self.loop = [Block(args) for _ in range(args.loop_layers)]
        self.coda = [Block(args) for _ in range(args.coda_layers)]
        self.norm = nn.RMSNorm(args.hidden_size, args.rms_norm_eps)
        if not args.tie_word_embeddings:
            self.lm_head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)

    def __call__(self, inputs: Any, cache: list[Any] | None = None) -> Any:
        """Return logits (B, T, V). For another number of passes set ``model.args.recurrence``, then make a cache."""
        R = self.args.recurrence
        slots = iter(cache if cache is not None else [None] * len(self.layers))
        x = self.embed_tokens(inputs)
        for block in self.prelude:
            x = block(x, next(slots))
        start, scale = x, float(R**self.args.residual_power)
        for _ in range(R):
            if self.args.injection == "add":
                x = x + start
            for block in self.loop:
                x = block(x, next(slots), scale)
        for block in self.coda:
            x = block(x, next(slots))
        x = self.norm(x)
        return self.embed_tokens.as_linear(x) if self.args.tie_word_embeddings else self.lm_head(x)

    @property
    def layers(self) -> list[Any]:
        """The blocks in the order in which they run, a looped one once for each pass: as many as cache slots."""
        return [*self.prelude, *self.loop * self.args.recurrence, *self.coda]

    def make_cache(self) -> list[Any]:
        """Return a cache with a slot for each (pass, layer)."""
        try:
            from mlx_lm.models.cache import KVCache
        except ImportError:
            KVCache = Slot
        return [KVCache() for _ in self.layers]
