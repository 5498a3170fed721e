# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""The mixture of experts: router, dispatchers, experts, and the layer that combines them.

Shapes: B batch, T tokens (of all sequences where B is absent), D width, E experts, K experts of a token, C rows that
drop-and-pad keeps for an expert, H width of an expert.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, use_experts_implementation

from .config import LoopedMoEConfig
from .experts import expert_ffn, quantized_ffn, tokens_of_experts, weighted_sum
from .kernels import swiglu


class Routing(NamedTuple):
    """The routing decisions of one call of a layer."""

    ids_TK: Tensor
    """The experts chosen."""
    counts_E: Tensor
    """Tokens that chose each expert."""
    z_loss: Tensor
    """Mean squared log-sum-exp of the router's logits."""
    logits_TE: Tensor
    """The router's logits."""


class Router(nn.Module):
    """Gates in float32. A bias without gradient affects which experts are chosen, not how they are weighted.

    It holds only ``weight`` and ``e_score_correction_bias``, the names that serving engines expect. In the loop each
    pass may have its own bias and, with ``pass_router``, its own weight; passes beyond the last use those of the last.
    """

    def __init__(self, config: LoopedMoEConfig, looped: bool = False) -> None:
        super().__init__()
        self.top_k, self.num_experts = config.num_experts_per_tok, config.num_experts
        self.normalised = config.norm_topk_prob
        self.scale = config.routed_scaling_factor
        self.is_softmax = config.router_score == "softmax"
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        later = (config.own_passes or 1) - 1 if looped and config.pass_router else 0
        self.later = nn.ParameterList(torch.empty_like(self.weight) for _ in range(later)) if later else None
        """The weights of the passes after the first."""
        bias_rows = config.bias_passes or 1 if looped else 1
        shape = (config.num_experts,) if bias_rows == 1 else (bias_rows, config.num_experts)
        self.register_buffer("e_score_correction_bias", torch.zeros(shape, dtype=torch.float32))

    def forward(self, x_TD: Tensor, pass_index: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return all logits (T, E), and the weights (T, K) and ids (T, K) of the chosen experts, the ids twice.

        Transformers' expert parallelism replaces the first ids by those of this process; loads count the second.
        """
        precise = torch.promote_types(x_TD.dtype, torch.float32)
        with torch.autocast(x_TD.device.type, enabled=False):
            logits_TE = functional.linear(x_TD.to(precise), self.weight_of(pass_index).to(precise))
            scores_TE = logits_TE.softmax(dim=-1) if self.is_softmax else logits_TE.sigmoid()
            ids_TK = (scores_TE.detach() + self.bias(pass_index)).topk(self.top_k, dim=-1, sorted=False).indices
            weights_TK = scores_TE.gather(1, ids_TK)
            if self.normalised:
                weights_TK = weights_TK / (weights_TK.sum(dim=-1, keepdim=True) + 1e-20)
        weights_TK = weights_TK if self.scale == 1 else weights_TK * self.scale
        return logits_TE, weights_TK, ids_TK, ids_TK

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move the bias with the module, and keep it in float32: its steps vanish in a shorter format."""
        before = self.bias_rows
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        after = self.bias_rows
        if after.dtype != torch.float32:
            self.e_score_correction_bias = before.to(after.device, torch.float32)
        return self

    @property
    def bias_rows(self) -> Tensor:
        """The balancing bias: (E,), or a row for each pass."""
        bias = self.e_score_correction_bias
        assert isinstance(bias, Tensor)
        return bias

    def weight_of(self, pass_index: int) -> Tensor:
        """Return the weight (E, D) for a pass."""
        if self.later is None or not pass_index:
            return self.weight
        weight_ED: Tensor = self.later[min(pass_index, len(self.later)) - 1]
        return weight_ED

    def bias(self, pass_index: int) -> Tensor:
        """Return the balancing bias for a pass."""
        bias = self.bias_rows
        return bias if bias.dim() == 1 else bias[min(pass_index, len(bias) - 1)]


def capacity(tokens: int, config: LoopedMoEConfig) -> int:
    """Return how many rows drop-and-pad keeps for an expert, of ``tokens`` tokens."""
    rows = tokens * config.num_experts_per_tok
    return min(tokens, math.ceil(config.capacity_factor * rows / config.num_experts))


def pad(
    x_TD: Tensor, ids_TK: Tensor, experts: int, kept: int, token_mask_T: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return each expert's first ``kept`` tokens (E, C, D), padded with zeros, and the slot of every row (S,).

    Padding, which ``token_mask_T`` marks False, takes no slot.
    """
    flat_S = ids_TK.flatten()
    # A row's position in its expert's queue; rows beyond capacity share one spare slot, which is cut off.
    chosen_SE = flat_S[:, None] == torch.arange(experts, device=flat_S.device)  # one_hot reads values on the host
    if token_mask_T is not None:
        real_S = token_mask_T.repeat_interleave(ids_TK.shape[1])
        chosen_SE = chosen_SE * real_S[:, None]
    queue_S = chosen_SE.cumsum(0).gather(1, flat_S[:, None]).squeeze(1) - 1
    if token_mask_T is not None:
        queue_S = torch.where(real_S, queue_S, kept)
    slot_S = flat_S * (kept + 1) + queue_S.clamp(max=kept)
    rows_SD = x_TD.repeat_interleave(ids_TK.shape[1], dim=0)
    padded = x_TD.new_zeros(experts * (kept + 1), x_TD.shape[1]).index_copy(0, slot_S, rows_SD)
    return padded.view(experts, kept + 1, -1)[:, :kept], slot_S


def padded_experts(x_ECD: Tensor, gate_up_E2HD: Tensor, down_EDH: Tensor) -> Tensor:
    """Return each expert's output for its own rows."""
    return torch.bmm(swiglu(torch.bmm(x_ECD, gate_up_E2HD.transpose(1, 2))), down_EDH.transpose(1, 2))


def unpad(y_ECD: Tensor, slot_S: Tensor, weights_TK: Tensor) -> Tensor:
    """Return each token's weighted sum over its rows; a dropped row is zero."""
    y_SD = functional.pad(y_ECD, (0, 0, 0, 1)).flatten(0, 1).index_select(0, slot_S)
    return weighted_sum(y_SD.view(*weights_TK.shape, -1), weights_TK)


def drop_and_pad(
    x_TD: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    gate_up_E2HD: Tensor,
    down_EDH: Tensor,
    kept: int,
    token_mask_T: Tensor | None = None,
) -> Tensor:
    """Return the weighted sum over experts, each of which takes its first ``kept`` tokens and drops the others.

    Every expert computes ``kept`` rows, padded with zeros, so shapes do not depend on the routing.
    """
    x_ECD, slot_S = pad(x_TD, ids_TK, len(down_EDH), kept, token_mask_T)
    return unpad(padded_experts(x_ECD, gate_up_E2HD, down_EDH), slot_S, weights_TK)


@use_experts_implementation
class ExpertWeights(nn.Module):
    """The experts' weights in the layout of Transformers' experts interface.

    ``set_experts_implementation("grouped_mm")``, or another of Transformers' names, replaces our own "eager".
    """

    def __init__(self, config: LoopedMoEConfig) -> None:
        super().__init__()
        E, D, H = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.config = config
        self.num_experts, self.act_fn = E, nn.SiLU()
        self.gate_up_proj = nn.Parameter(torch.empty(E, 2 * H, D))
        self.down_proj = nn.Parameter(torch.empty(E, D, H))

    @property
    def is_quantized(self) -> bool:
        """Whether the weights are quantised by torchao: as one tensor, or as a list with one for each expert."""
        return not isinstance(self.down_proj, Tensor) or hasattr(self.down_proj, "qdata")

    def forward(self, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """Return each token's weighted sum over its experts."""
        if self.is_quantized:
            return quantized_ffn(x_TD, ids_TK, weights_TK, self.gate_up_proj, self.down_proj)
        # Under expert parallelism some ids belong elsewhere, and an exported program should use no operation of ours.
        if len(self.down_proj) < self.config.num_experts or torch.compiler.is_exporting():
            # ONNX has no form of the grouped product.
            theirs = ALL_EXPERTS_FUNCTIONS["batched_mm" if torch.onnx.is_in_onnx_export() else "grouped_mm"]
            return theirs(self, x_TD, ids_TK, weights_TK)  # type: ignore[no-any-return]
        return expert_ffn(x_TD, ids_TK, weights_TK, self.gate_up_proj, self.down_proj)


class Experts(ExpertWeights):
    """The experts, and the dispatcher that the config asks for."""

    def forward(self, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, token_mask_T: Tensor | None = None) -> Tensor:
        """Return each token's weighted sum over its experts; only drop-and-pad in training drops any."""
        if self.training and self.config.dispatch == "drop-and-pad":
            kept = capacity(len(x_TD), self.config)
            return drop_and_pad(x_TD, ids_TK, weights_TK, self.gate_up_proj, self.down_proj, kept, token_mask_T)
        out_TD: Tensor = super().forward(x_TD, ids_TK, weights_TK)
        return out_TD


class SwiGLU(nn.Module):
    """A dense SwiGLU block: the whole feed-forward layer when E = 1, and the shared expert."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(width, 2 * hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return down(silu(gate) * up)."""
        out: Tensor = self.down_proj(swiglu(self.gate_up_proj(x_BTD)))
        return out


class MoELayer(nn.Module):
    """Router, experts and an optional shared expert that every token uses."""

    def __init__(self, config: LoopedMoEConfig, looped: bool = False) -> None:
        super().__init__()
        self.router = Router(config, looped)
        self.experts = Experts(config)
        hidden = config.shared_expert_intermediate_size
        self.shared_expert = SwiGLU(config.hidden_size, hidden) if hidden else None

    def forward(
        self, x_BTD: Tensor, pass_index: int = 0, tally: bool = False, token_mask: Tensor | None = None
    ) -> tuple[Tensor, Routing | None]:
        """Return the output and, with ``tally``, the routing, which is returned and not stored."""
        x_TD = x_BTD.reshape(-1, x_BTD.shape[-1])
        mask_T = None if token_mask is None else token_mask.reshape(-1)
        logits_TE, weights_TK, ids_TK, chosen_TK = self.router(x_TD, pass_index)
        # Serving engines replace the experts by a module without the mask.
        masked = () if mask_T is None else (mask_T,)
        out_TD = self.experts(x_TD, ids_TK, weights_TK, *masked)
        if self.shared_expert is not None:
            out_TD = out_TD + self.shared_expert(x_TD)
        routing = _routing(chosen_TK, logits_TE, mask_T) if tally else None
        return out_TD.view_as(x_BTD), routing


def _routing(ids_TK: Tensor, logits_TE: Tensor, mask_T: Tensor | None) -> Routing:
    """Return the routing; padding counts neither in the loads nor in the z-loss."""
    z_T = logits_TE.logsumexp(dim=-1).square()
    if mask_T is None:
        return Routing(ids_TK, tokens_of_experts(ids_TK, logits_TE.shape[1]), z_T.mean(), logits_TE)
    chosen_TKE = ids_TK.unsqueeze(-1) == torch.arange(logits_TE.shape[1], device=ids_TK.device)
    counts_E = (chosen_TKE & mask_T[:, None, None]).sum((0, 1))
    z_loss = (z_T * mask_T).sum() / mask_T.sum().clamp(min=1)
    return Routing(ids_TK, counts_E, z_loss, logits_TE)
