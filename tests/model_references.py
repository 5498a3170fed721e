"""What the hand-written operations compute, in a few plain lines each.

Shapes: B batch, T tokens, D width, N heads, h head size, r half of it, E experts, K experts of a token, H width of an
expert, X rows of hidden states, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm_reference(x_BTD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) * weight."""
    return x_BTD / (x_BTD.square().mean(-1, keepdim=True) + eps).sqrt() * weight_D


def swiglu_reference(x_T2H: Tensor) -> Tensor:
    """Return silu(gate) * up; the gate is the first half of the last dimension."""
    gate_TH, up_TH = x_T2H.chunk(2, dim=-1)
    return gate_TH * gate_TH.sigmoid() * up_TH


def rotary_reference(
    qkv_BTNh: Tensor, cos_BT1r: Tensor, sin_BT1r: Tensor, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys rotated by position, and values, (B, N, T, h) each."""
    query_BTNh, key_BTNh, value_BTNh = qkv_BTNh.split([heads, kv_heads, kv_heads], dim=2)  # type: ignore[no-untyped-call]

    def rotate(x_BTNh: Tensor) -> Tensor:
        first, second = x_BTNh.chunk(2, dim=-1)
        return torch.cat((first * cos_BT1r - second * sin_BT1r, second * cos_BT1r + first * sin_BT1r), dim=-1)

    return rotate(query_BTNh).transpose(1, 2), rotate(key_BTNh).transpose(1, 2), value_BTNh.transpose(1, 2)


def cross_entropy_reference(hidden_XD: Tensor, weight_VD: Tensor, labels_X: Tensor, scale_X: Tensor) -> Tensor:
    """Return the sum of each row's cross-entropy times its scale, from the logits of all rows."""
    logits_XV = functional.linear(hidden_XD, weight_VD).float()
    return (functional.cross_entropy(logits_XV, labels_X, reduction="none") * scale_X).sum()


def expert_ffn_reference(
    x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, gate_up_E2HD: Tensor, down_EDH: Tensor
) -> Tensor:
    """Return each token's weighted sum over its experts' SwiGLU blocks, one token and one expert at a time."""
    rows = []
    for x_D, ids_K, weights_K in zip(x_TD, ids_TK.tolist(), weights_TK, strict=True):
        out_D = torch.zeros_like(x_D)
        for expert, weight in zip(ids_K, weights_K, strict=True):
            gate_H, up_H = (gate_up_E2HD[expert] @ x_D).chunk(2)
            out_D = out_D + weight * (down_EDH[expert] @ (functional.silu(gate_H) * up_H))
        rows.append(out_D)
    return torch.stack(rows)
