# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""RMSNorm, SwiGLU and rotary positions with hand-written gradients that read and write memory few times.

Element-wise work between matrix products takes a third of a small MoE's training step in eager PyTorch. These
functions save only what backward needs and write into buffers that are still in the processor's cache. They support
every dtype, float64 included. Under ``torch.compile`` the plain formulas run and the compiler fuses them.

The tests compare each function with a reference of a few lines.

Shapes: B batch, T tokens (of one sequence, or of all of them where B is absent), D width, N heads, h head size,
r half of it, H width of an expert.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


def rms_norm(x_BTD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) * weight, computed in float32 or better."""
    if x_BTD.dtype in (torch.float16, torch.bfloat16):
        return functional.rms_norm(x_BTD.float(), weight_D.shape, None, eps).to(x_BTD.dtype) * weight_D
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return functional.rms_norm(x_BTD, weight_D.shape, weight_D, eps)
    return _RMSNorm.apply(x_BTD, weight_D, eps)  # type: ignore[no-any-return, no-untyped-call]


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        scale_BT1 = torch.linalg.vector_norm(x_BTD, dim=-1, keepdim=True).square_()
        scale_BT1 = scale_BT1.div_(x_BTD.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x_BTD, weight_D, scale_BT1)
        return (x_BTD * scale_BT1).mul_(weight_D)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTD: Tensor) -> tuple[Tensor, Tensor, None]:
        x_BTD, weight_D, scale_BT1 = ctx.saved_tensors
        unit_BTD = x_BTD * scale_BT1
        product_BTD = grad_BTD * unit_BTD
        grad_weight_D = product_BTD.flatten(0, -2).sum(0)
        along_BT1 = torch.matmul(product_BTD, weight_D).unsqueeze_(-1).div_(x_BTD.shape[-1])
        grad_x_BTD = torch.mul(grad_BTD, weight_D, out=product_BTD)
        return grad_x_BTD.sub_(unit_BTD.mul_(along_BT1)).mul_(scale_BT1), grad_weight_D, None


def swiglu(x_T2H: Tensor) -> Tensor:
    """Return silu(gate) * up; the gate is the first half of the last dimension."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        gate_TH, up_TH = x_T2H.chunk(2, dim=-1)
        return functional.silu(gate_TH) * up_TH
    return _SwiGLU.apply(x_T2H)  # type: ignore[no-any-return, no-untyped-call]


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_T2H: Tensor) -> Tensor:
        ctx.save_for_backward(x_T2H)
        gate_TH, up_TH = x_T2H.chunk(2, dim=-1)
        return functional.silu(gate_TH).mul_(up_TH)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TH: Tensor) -> Tensor:
        (x_T2H,) = ctx.saved_tensors
        gate_TH, up_TH = x_T2H.chunk(2, dim=-1)
        grad_T2H = torch.empty_like(x_T2H)
        grad_gate_TH, grad_up_TH = grad_T2H.chunk(2, dim=-1)
        torch.mul(grad_TH, functional.silu(gate_TH), out=grad_up_TH)
        torch.ops.aten.silu_backward(grad_TH * up_TH, gate_TH, grad_input=grad_gate_TH)
        return grad_T2H


def rotary_heads(
    qkv_BTNh: Tensor, cos_BT1r: Tensor, sin_BT1r: Tensor, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Split projected heads into queries, keys and values, (B, N, T, h) each, and rotate the first two by position."""
    if torch.compiler.is_compiling():
        query_BNTh, key_BNTh, value_BNTh = _split(qkv_BTNh, heads, kv_heads)
        angles = cos_BT1r.transpose(1, 2), sin_BT1r.transpose(1, 2)
        return _rotated(query_BNTh, *angles), _rotated(key_BNTh, *angles), value_BNTh
    return _RotaryHeads.apply(qkv_BTNh, cos_BT1r, sin_BT1r, heads, kv_heads)  # type: ignore[no-any-return, no-untyped-call]


def _split(heads_BTNh: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = torch.split(heads_BTNh, [heads, kv_heads, kv_heads], dim=2)
    return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


class _RotaryHeads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv_BTNh: Tensor, cos_BT1r: Tensor, sin_BT1r: Tensor, heads: int, kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos_BT1r, sin_BT1r)
        out_BTNh = torch.empty_like(qkv_BTNh)
        both = heads + kv_heads
        _rotate(qkv_BTNh[:, :, :both], cos_BT1r, sin_BT1r, 1.0, out_BTNh[:, :, :both])
        out_BTNh[:, :, both:] = qkv_BTNh[:, :, both:]
        return _split(out_BTNh, heads, kv_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, query_BNTh: Tensor, key_BNTh: Tensor, value_BNTh: Tensor) -> tuple[Tensor | None, ...]:
        cos_BT1r, sin_BT1r = ctx.saved_tensors
        B, heads, T, h = query_BNTh.shape
        kv_heads = key_BNTh.shape[1]
        out_BTNh = query_BNTh.new_empty(B, T, heads + 2 * kv_heads, h)
        _rotate(query_BNTh.transpose(1, 2), cos_BT1r, sin_BT1r, -1.0, out_BTNh[:, :, :heads])
        _rotate(key_BNTh.transpose(1, 2), cos_BT1r, sin_BT1r, -1.0, out_BTNh[:, :, heads : heads + kv_heads])
        out_BTNh[:, :, heads + kv_heads :] = value_BNTh.transpose(1, 2)
        return out_BTNh, None, None, None, None


def _rotated(x_BNTh: Tensor, cos_B1Tr: Tensor, sin_B1Tr: Tensor) -> Tensor:
    """Return the rotated heads; with halves swapped, not concatenated, a compiler emits one vectorised pass."""
    halves: Tensor = x_BNTh.unflatten(-1, (2, -1))  # type: ignore[no-untyped-call]
    sign_21 = torch.arange(-1, 2, 2, device=x_BNTh.device)[:, None]
    return (halves * cos_B1Tr.unsqueeze(-2) + halves.flip(-2) * (sin_B1Tr.unsqueeze(-2) * sign_21)).flatten(-2)


def _rotate(x_BTNh: Tensor, cos_BT1r: Tensor, sin_BT1r: Tensor, direction: float, out_BTNh: Tensor) -> None:
    """Write the rotated heads to ``out_BTNh``; direction -1 is the inverse rotation."""
    first, second = x_BTNh.chunk(2, dim=-1)
    low, high = out_BTNh.chunk(2, dim=-1)
    torch.mul(first, cos_BT1r, out=low).addcmul_(second, sin_BT1r, value=-direction)
    torch.mul(second, cos_BT1r, out=high).addcmul_(first, sin_BT1r, value=direction)
