# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""The layers of the model: norm, attention without weights, and the block that owns the weights.

Shapes: B batch, T tokens, D width, N heads, h head size, r half of it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .cache import SlotUse, update
from .config import LoopedMoEConfig
from .kernels import rms_norm, rotary_heads
from .moe import MoELayer, Routing, SwiGLU


class RMSNorm(nn.Module):
    """x / rms(x) * weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the normalised states."""
        return rms_norm(x_BTD, self.weight, self.eps)


def rotary(position_BT: Tensor, config: LoopedMoEConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (B, T, 1, r) of rotary positions.

    They are computed at each forward, because a buffer would stay uninitialised in a model built on the meta device.
    """
    frequency_r, scale = rotary_frequencies(position_BT, config)
    angle_BT1r = (position_BT[..., None].float() * frequency_r).unsqueeze(-2)
    cos_BT1r, sin_BT1r = angle_BT1r.cos(), angle_BT1r.sin()
    if scale != 1:
        cos_BT1r, sin_BT1r = cos_BT1r * scale, sin_BT1r * scale
    return cos_BT1r.to(dtype), sin_BT1r.to(dtype)


def rotary_frequencies(position_BT: Tensor, config: LoopedMoEConfig) -> tuple[Tensor, float]:
    """Return the rotary frequencies (r,) and the factor on cosines and sines that the config's scaling asks for."""
    parameters, head_dim = config.rope_parameters, config.head_dim  # once: attribute access on a config is slow
    assert parameters is not None
    kind = parameters["rope_type"]
    if kind != "default":
        # Only "dynamic" depends on the length; it reads the positions, which a compiled graph cannot.
        length = int(position_BT.max()) + 1 if kind == "dynamic" else None
        frequency_r, scale = ROPE_INIT_FUNCTIONS[kind](config, position_BT.device, seq_len=length)
        return frequency_r, float(scale)
    half = torch.arange(head_dim // 2, device=position_BT.device, dtype=torch.float32)
    base = float(parameters["rope_theta"])
    return base ** (half * (-2.0 / head_dim)), 1.0


class RotaryEmbedding(nn.Module):
    """Rotary positions as a module without weights or buffers, with the signatures of Hugging Face's."""

    def __init__(self, config: LoopedMoEConfig, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.config, self.device = config, device

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (B, T, 1, r) in the format of ``x``."""
        return rotary(position_ids, self.config, x.dtype)

    @property
    def inv_freq(self) -> Tensor:
        """The frequencies (r,) up to the trained length."""
        return rotary_frequencies(torch.zeros(1, 1, device=self.device), self.config)[0]


class SlotAttention(nn.Module):
    """Attention over one cache slot, without weights: a looped block uses a different one at each pass.

    Caches, ``generate`` and vLLM identify a layer by the integer ``layer_idx`` of this module.
    """

    def __init__(self, config: LoopedMoEConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        self.is_causal = True

    def forward(
        self,
        query_BNTh: Tensor,
        key_BNTh: Tensor,
        value_BNTh: Tensor,
        attention_mask: Tensor | None,
        past_key_values: Cache | None = None,
        use: SlotUse | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (B, T, N h), and the weights (B, N, T, keys) if the implementation has them.

        ``use`` is how the slot is used if new keys and values are not just appended.
        """
        if past_key_values is not None and use is None:
            key_BNTh, value_BNTh = past_key_values.update(key_BNTh, value_BNTh, self.layer_idx)
        elif past_key_values is not None and use is not None:
            key_BNTh, value_BNTh = update(past_key_values, self.layer_idx, use, key_BNTh, value_BNTh)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, plain_attention)
        out, weights = attend(self, query_BNTh, key_BNTh, value_BNTh, attention_mask, scaling=self.scaling, **kwargs)
        return out.reshape(query_BNTh.shape[0], query_BNTh.shape[2], -1), weights


def plain_attention(
    module: SlotAttention,
    query_BNTh: Tensor,
    key_BNTh: Tensor,
    value_BNTh: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Return attention by its formula, with its weights (the "eager" implementation)."""
    key_BNTh = key_BNTh.repeat_interleave(module.num_key_value_groups, dim=1)
    value_BNTh = value_BNTh.repeat_interleave(module.num_key_value_groups, dim=1)
    scores_BNTT = query_BNTh @ key_BNTh.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores_BNTT = scores_BNTT + attention_mask
    weights_BNTT = scores_BNTT.softmax(dim=-1, dtype=torch.promote_types(scores_BNTT.dtype, torch.float32))
    weights_BNTT = weights_BNTT.to(query_BNTh.dtype)
    return (weights_BNTT @ value_BNTh).transpose(1, 2).contiguous(), weights_BNTT


class LowRank(nn.Module):
    """An adapter, up(down(x)), that starts at zero."""

    CONSTANTS: ClassVar[dict[str, float]] = {"up": 0.0}

    def __init__(self, wide: nn.Linear, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, wide.in_features))
        self.up = nn.Parameter(torch.empty(wide.out_features, rank))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return what is added to the output of the layer that it adapts."""
        return functional.linear(functional.linear(x_BTD, self.down), self.up)


class PassModules(nn.Module):
    """The parts of a block that a later pass has for itself; a part that is None is that of the first pass."""

    def __init__(self, block: Block, config: LoopedMoEConfig) -> None:
        super().__init__()
        for name in ("input_layernorm", "post_attention_layernorm"):
            setattr(self, name, RMSNorm(config.hidden_size, config.rms_norm_eps) if config.pass_norms else None)
        for name in ("qkv_proj", "o_proj"):
            first: nn.Linear = getattr(block, name)
            own: nn.Module | None = None
            if config.pass_attention == "low-rank":
                own = LowRank(first, config.pass_attention_rank)
            elif config.pass_attention == "full":
                own = nn.Linear(first.in_features, first.out_features, bias=False)
            setattr(self, name, own)


class Block(GradientCheckpointingLayer):
    """Pre-norm attention and feed-forward. It owns the weights and is called once for each pass."""

    def __init__(self, config: LoopedMoEConfig, looped: bool = False) -> None:
        super().__init__()
        width, self.head_dim = config.hidden_size, config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.input_layernorm = RMSNorm(width, config.rms_norm_eps)
        self.qkv_proj = nn.Linear(width, (self.heads + 2 * self.kv_heads) * self.head_dim, config.qkv_bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, width, config.output_bias)
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if config.qk_norm != "none":
            widths = (
                self.head_dim * (heads if config.qk_norm == "full" else 1) for heads in (self.heads, self.kv_heads)
            )
            self.q_norm, self.k_norm = (RMSNorm(width, config.rms_norm_eps) for width in widths)
        self.post_attention_layernorm = RMSNorm(width, config.rms_norm_eps)
        self.mlp: nn.Module = MoELayer(config, looped) if config.is_moe else SwiGLU(width, config.intermediate_size)
        own = looped and (config.pass_norms or config.pass_attention != "shared")
        later = [PassModules(self, config) for _ in range(1, config.own_passes or 1)] if own else []
        self.later = nn.ModuleList(later) if later else None
        """Parts of the passes after the first."""

    def forward(
        self,
        x_BTD: Tensor,
        attention: SlotAttention,
        angles: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        pass_index: int = 0,
        scale: float = 1.0,
        tally: bool = False,
        token_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        use: SlotUse | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Routing | None, Tensor | None]:
        """Return the new states, the routing and the attention weights; ``attention`` is the slot of this pass.

        ``scale`` multiplies what attention and feed-forward add to the states.
        ``token_mask`` (B, T) is False for padding, which then counts in no expert's load.
        """
        normed_BTD = self._part("input_layernorm", pass_index)(x_BTD)
        qkv_BTNh = self._projected("qkv_proj", normed_BTD, pass_index).unflatten(-1, (-1, self.head_dim))
        if self.q_norm is not None and self.k_norm is not None:
            query_BTNh, key_BTNh, value_BTNh = qkv_BTNh.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
            normed = self._normed_heads(self.q_norm, query_BTNh), self._normed_heads(self.k_norm, key_BTNh)
            qkv_BTNh = torch.cat((*normed, value_BTNh), dim=2)
        heads = rotary_heads(qkv_BTNh, *angles, self.heads, self.kv_heads)
        mixed_BTD, weights = attention(*heads, attention_mask, past_key_values=past_key_values, use=use, **kwargs)
        x_BTD = torch.add(x_BTD, self._projected("o_proj", mixed_BTD, pass_index), alpha=scale)
        normed_BTD = self._part("post_attention_layernorm", pass_index)(x_BTD)
        if isinstance(self.mlp, MoELayer):
            out_BTD, routing = self.mlp(normed_BTD, pass_index, tally, token_mask)
            return torch.add(x_BTD, out_BTD, alpha=scale), routing, weights
        return torch.add(x_BTD, self.mlp(normed_BTD), alpha=scale), None, weights

    @staticmethod
    def _normed_heads(norm: RMSNorm, x_BTNh: Tensor) -> Tensor:
        """Return normalised heads; the norm's width says whether it is over each or over all of them."""
        if norm.weight.shape[0] == x_BTNh.shape[-1]:
            normed_BTNh: Tensor = norm(x_BTNh)
            return normed_BTNh
        together_BTF: Tensor = norm(x_BTNh.flatten(-2))
        return together_BTF.view_as(x_BTNh)

    def _part(self, name: str, pass_index: int) -> Any:
        """Return a part of this pass: its own if it has one, otherwise that of the first."""
        own = None
        if self.later is not None and pass_index:
            own = getattr(self.later[min(pass_index, len(self.later)) - 1], name)
        return getattr(self, name) if own is None else own

    def _projected(self, name: str, x_BTD: Tensor, pass_index: int) -> Any:
        part = self._part(name, pass_index)
        return getattr(self, name)(x_BTD) + part(x_BTD) if isinstance(part, LowRank) else part(x_BTD)
