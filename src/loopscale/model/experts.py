# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""The experts' feed-forward without padding and without dropping, as one operation with its own gradient.

``expert_ffn`` chooses the path; the tests compare each with a reference of ten lines. In training on a CPU, rows are
sorted by expert, and each expert processes its rows in buffers that all experts share, so that they stay in the
processor's cache. Backward recomputes the activations from the projected rows. Without gradients, and under
``torch.compile``, all rows go through each step together, and only the products are done by expert. GPUs multiply the
rows of all experts in one kernel.

Shapes: T tokens, K experts of a token, S = T K rows sorted by expert, E experts, D width, H width of an expert;
C the rows of the expert at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

FEW_ROWS, FEW_NUMBERS, LARGE = 8, 1 << 12, 1 << 17
"""Up to so many rows of an expert, and numbers in them, and from so many numbers in its matrix, weights times columns
are the faster product: BLAS reads the matrix up to twice as fast."""
_on_device = False


@contextmanager
def device_kernels() -> Iterator[None]:
    """Use the kernels for GPUs on any device within the block; for estimates and tests."""
    global _on_device
    before, _on_device = _on_device, True
    try:
        yield
    finally:
        _on_device = before


def _blocks_host(tensor: Tensor) -> bool:
    """Whether reading ``tensor`` on the host would block on the device."""
    return tensor.is_cuda or _on_device


def expert_ffn(x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, gate_up_E2HD: Tensor, down_EDH: Tensor) -> Tensor:
    """Return each token's weighted sum over its experts' SwiGLU blocks."""
    if _blocks_host(x_TD):
        return grouped_ffn(x_TD, ids_TK, weights_TK, gate_up_E2HD, down_EDH)
    if torch.compiler.is_compiling():
        return _compiled(x_TD, ids_TK, weights_TK, gate_up_E2HD, down_EDH)
    tensors = (x_TD, weights_TK, gate_up_E2HD, down_EDH)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _ExpertFFN.apply(x_TD, ids_TK, weights_TK, gate_up_E2HD, down_EDH)  # type: ignore[no-any-return, no-untyped-call]
    if len(x_TD) == 1:
        return _one_token(x_TD, ids_TK, weights_TK, gate_up_E2HD, down_EDH)
    return _without_gradients(x_TD, ids_TK, weights_TK, gate_up_E2HD, down_EDH)


def quantized_ffn(x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, gate_up_E2HD: Any, down_EDH: Any) -> Tensor:
    """Return the same for quantised weights: one expert at a time, because their kernels multiply by one matrix.

    The weights are a tensor of three dimensions or a list with a matrix for each expert.
    """
    out_TD = torch.zeros_like(x_TD)
    for expert in ids_TK.unique().tolist():  # type: ignore[no-untyped-call]
        token_C, choice_C = (ids_TK == expert).nonzero(as_tuple=True)
        gate_CH, up_CH = functional.linear(x_TD[token_C], gate_up_E2HD[expert]).chunk(2, dim=-1)
        y_CD = functional.linear(functional.silu(gate_CH) * up_CH, down_EDH[expert])
        out_TD = out_TD.index_add(0, token_C, y_CD * weights_TK[token_C, choice_C, None].to(y_CD.dtype))
    return out_TD


def grouped_ffn(x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, gate_up_E2HD: Tensor, down_EDH: Tensor) -> Tensor:
    """Return the same for GPUs: products of all experts in one kernel, whose offsets stay on the device.

    No size depends on the routing, so the host never waits for the device.
    """
    T, K = ids_TK.shape
    order_S = ids_TK.flatten().argsort(stable=True)
    ends_E = tokens_of_experts(ids_TK, len(down_EDH)).cumsum(0).to(torch.int32)
    x_SD = x_TD.index_select(0, order_S // K)
    gate_SH, up_SH = functional.grouped_mm(x_SD, gate_up_E2HD.transpose(1, 2), offs=ends_E).chunk(2, dim=-1)
    y_SD = functional.grouped_mm(functional.silu(gate_SH) * up_SH, down_EDH.transpose(1, 2), offs=ends_E)
    return weighted_sum(y_SD.index_select(0, inverse(order_S)).view(T, K, -1), weights_TK)


def _one_token(x_1D: Tensor, ids_1K: Tensor, weights_1K: Tensor, gate_up_E2HD: Tensor, down_EDH: Tensor) -> Tensor:
    """Decode a single token: there is nothing to sort, and the cost is reading K experts."""
    out_1D = torch.zeros_like(x_1D)
    for expert, weight in zip(ids_1K[0].tolist(), weights_1K[0].tolist(), strict=True):
        gate_1H, up_1H = _few_rows(x_1D, gate_up_E2HD[expert]).chunk(2, dim=-1)
        out_1D.add_(_few_rows(functional.silu(gate_1H).mul_(up_1H), down_EDH[expert]), alpha=weight)
    return out_1D


def _without_gradients(
    x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, gate_up_E2HD: Tensor, down_EDH: Tensor
) -> Tensor:
    """Return the output alone: no rows are saved for backward, so each step is one operation on all of them."""
    order_S = ids_TK.flatten().argsort(stable=True)
    counts_E = tokens_of_experts(ids_TK, len(down_EDH))
    x_SD = x_TD.index_select(0, order_S // ids_TK.shape[1])
    gate_SH, up_SH = _expert_products(x_SD, gate_up_E2HD, counts_E).chunk(2, dim=-1)
    y_SD = _expert_products(functional.silu(gate_SH).mul_(up_SH), down_EDH, counts_E)
    return _combined(y_SD, order_S, weights_TK)


def _forward(
    x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, gate_up_E2HD: Tensor, down_EDH: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the output, and for backward the projected rows, their order and the experts' counts."""
    flat_S = ids_TK.flatten()
    order_S = flat_S.argsort(stable=True)
    counts_E = tokens_of_experts(ids_TK, len(down_EDH))
    counts = counts_E.tolist()
    D, H = down_EDH.shape[1:]
    hidden_S2H = x_TD.new_empty(len(flat_S), 2 * H)
    y_SD = x_TD.new_empty(len(flat_S), D)
    token_S = order_S // ids_TK.shape[1]
    act_CH, x_CD = x_TD.new_empty(max(counts), H), x_TD.new_empty(max(counts), D)
    for expert, rows in _segments(counts):
        C = rows.stop - rows.start
        torch.index_select(x_TD, 0, token_S[rows], out=x_CD[:C])
        torch.mm(x_CD[:C], gate_up_E2HD[expert].t(), out=hidden_S2H[rows])
        gate_CH, up_CH = hidden_S2H[rows].chunk(2, dim=-1)
        torch.ops.aten.silu(gate_CH, out=act_CH[:C]).mul_(up_CH)
        torch.mm(act_CH[:C], down_EDH[expert].t(), out=y_SD[rows])
    return _combined(y_SD, order_S, weights_TK), hidden_S2H, order_S, counts_E


def _backward(
    grad_TD: Tensor,
    x_TD: Tensor,
    weights_TK: Tensor,
    gate_up_E2HD: Tensor,
    down_EDH: Tensor,
    hidden_S2H: Tensor,
    order_S: Tensor,
    counts_E: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of tokens, gate weights and both expert matrices."""
    counts = counts_E.tolist()
    D, H = down_EDH.shape[1:]
    token_S = order_S // weights_TK.shape[1]
    weight_S1 = weights_TK.flatten().index_select(0, order_S).unsqueeze(1).to(x_TD.dtype)
    grad_SD, grad_weight_S = x_TD.new_empty(len(order_S), D), x_TD.new_empty(len(order_S))
    grad_gate_up_E2HD, grad_down_EDH = torch.empty_like(gate_up_E2HD), torch.empty_like(down_EDH)
    idle_E = counts_E == 0
    grad_gate_up_E2HD[idle_E], grad_down_EDH[idle_E] = 0, 0
    buffers = [x_TD.new_empty(max(counts), width) for width in (H, H, H, D, 2 * H)]
    for expert, rows in _segments(counts):
        silu_CH, act_CH, grad_act_CH, gathered_CD, grad_C2H = (buffer[: rows.stop - rows.start] for buffer in buffers)
        gate_CH, up_CH = hidden_S2H[rows].chunk(2, dim=-1)
        grad_gate_CH, grad_up_CH = grad_C2H.chunk(2, dim=-1)
        torch.ops.aten.silu(gate_CH, out=silu_CH)
        torch.mul(silu_CH, up_CH, out=act_CH)
        torch.index_select(grad_TD, 0, token_S[rows], out=gathered_CD)
        torch.mm(gathered_CD, down_EDH[expert], out=grad_act_CH)
        # A gate's gradient is <down(act), grad> = <act, down'(grad)>, so the experts' outputs need not be saved.
        grad_weight_S[rows] = torch.linalg.vecdot(act_CH, grad_act_CH)
        torch.mm(gathered_CD.mul_(weight_S1[rows]).t(), act_CH, out=grad_down_EDH[expert])
        grad_act_CH.mul_(weight_S1[rows])
        torch.mul(grad_act_CH, silu_CH, out=grad_up_CH)
        torch.ops.aten.silu_backward(grad_act_CH.mul_(up_CH), gate_CH, grad_input=grad_gate_CH)
        torch.index_select(x_TD, 0, token_S[rows], out=gathered_CD)
        torch.mm(grad_C2H.t(), gathered_CD, out=grad_gate_up_E2HD[expert])
        torch.mm(grad_C2H, gate_up_E2HD[expert], out=grad_SD[rows])
    grad_weight_TK = torch.empty_like(grad_weight_S).index_copy_(0, order_S, grad_weight_S).view_as(weights_TK)
    grad_x_TD = _combined(grad_SD, order_S, torch.ones_like(weights_TK))
    return grad_x_TD, grad_weight_TK.to(weights_TK.dtype), grad_gate_up_E2HD, grad_down_EDH


def _segments(counts: list[int]) -> Iterator[tuple[int, slice]]:
    """Yield each expert that has rows, and the slice of its rows."""
    start = 0
    for expert, count in enumerate(counts):
        if count:
            yield expert, slice(start, start + count)
        start += count


class _ExpertFFN(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, gate_up_E2HD: Tensor, down_EDH: Tensor
    ) -> Tensor:
        out_TD, *for_backward = _forward(x_TD, ids_TK, weights_TK, gate_up_E2HD, down_EDH)
        ctx.save_for_backward(x_TD, weights_TK, gate_up_E2HD, down_EDH, *for_backward)
        return out_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_weights, grad_gate_up, grad_down = _backward(grad_TD, *ctx.saved_tensors)
        return grad_x, None, grad_weights, grad_gate_up, grad_down


def _compiled(x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, gate_up_E2HD: Tensor, down_EDH: Tensor) -> Tensor:
    """Return the same in a form that a compiler can fuse, except for the products by expert."""
    T, K = ids_TK.shape
    order_S = ids_TK.flatten().argsort(stable=True)
    inverse_S = inverse(order_S)
    counts_E = tokens_of_experts(ids_TK, len(down_EDH))
    rows_SD = _Permuted.apply(x_TD.unsqueeze(1).expand(T, K, -1).flatten(0, 1), order_S, inverse_S)  # type: ignore[no-untyped-call]
    weight_S1 = _Permuted.apply(weights_TK.flatten().unsqueeze(1).to(x_TD.dtype), order_S, inverse_S)  # type: ignore[no-untyped-call]
    gate_SH, up_SH = torch.ops.loopscale.expert_products(rows_SD, gate_up_E2HD, counts_E).chunk(2, dim=-1)
    # Applying the weights before the last product makes their gradient independent of the experts' outputs.
    act_SH = functional.silu(gate_SH) * up_SH * weight_S1
    y_SD = torch.ops.loopscale.expert_products(act_SH, down_EDH, counts_E)
    out_TD: Tensor = _Permuted.apply(y_SD, inverse_S, order_S).unflatten(0, (T, K)).sum(1)  # type: ignore[no-untyped-call]
    return out_TD


class _Permuted(torch.autograd.Function):
    """Reorder rows; the gradient is the inverse reordering, which is cheaper than a scatter-add."""

    @staticmethod
    def forward(ctx: Any, x_SD: Tensor, order_S: Tensor, back_S: Tensor) -> Tensor:
        ctx.save_for_backward(back_S)
        return x_SD.index_select(0, order_S)

    @staticmethod
    def backward(ctx: Any, grad_SD: Tensor) -> tuple[Tensor, None, None]:
        (back_S,) = ctx.saved_tensors
        return grad_SD.index_select(0, back_S), None, None


def tokens_of_experts(ids_TK: Tensor, experts: int) -> Tensor:
    """Return how many rows each expert has."""
    if torch.compiler.is_compiling() or _blocks_host(ids_TK):  # the length of a bincount depends on the data
        return (ids_TK.flatten()[:, None] == torch.arange(experts, device=ids_TK.device)).sum(0)
    return torch.bincount(ids_TK.flatten(), minlength=experts)


def _combined(y_SD: Tensor, order_S: Tensor, weights_TK: Tensor) -> Tensor:
    """Return each token's weighted sum over its rows, which are sorted by expert."""
    inverse_S = inverse(order_S)
    if y_SD.dtype == torch.float32:  # one pass over the rows; other dtypes lack a fast kernel
        return functional.embedding_bag(
            inverse_S.view_as(weights_TK), y_SD, mode="sum", per_sample_weights=weights_TK.float()
        )
    # The width is stated, because a process may have no rows: those of shared experts depend on the routing.
    return weighted_sum(y_SD.index_select(0, inverse_S).view(*weights_TK.shape, y_SD.shape[1]), weights_TK)


def inverse(order_S: Tensor) -> Tensor:
    """Return the inverse of a permutation."""
    return torch.empty_like(order_S).scatter(0, order_S, torch.arange(len(order_S), device=order_S.device))


def weighted_sum(y_TKD: Tensor, weights_TK: Tensor) -> Tensor:
    """Return each token's weighted sum over the outputs of its experts."""
    return torch.matmul(weights_TK.to(y_TKD.dtype).unsqueeze(1), y_TKD).squeeze(1)


def _expert_products(x_SI: Tensor, weight_EOI: Tensor, counts_E: Tensor) -> Tensor:
    """Return each row times its expert's matrix, for rows sorted by expert."""
    counts = counts_E.tolist()
    out_SO = x_SI.new_empty(len(x_SI), weight_EOI.shape[1])
    rows = torch.split(x_SI, counts), weight_EOI.unbind(0), torch.split(out_SO, counts)
    for x_CI, weight_OI, out_CO in zip(*rows, strict=True):
        few = 0 < len(x_CI) <= FEW_ROWS and x_CI.numel() <= FEW_NUMBERS
        if few and weight_OI.numel() >= LARGE:
            out_CO.copy_(_few_rows(x_CI, weight_OI))
        elif len(x_CI):
            torch.mm(x_CI, weight_OI.t(), out=out_CO)
    return out_SO


def _few_rows(x_CI: Tensor, weight_OI: Tensor) -> Tensor:
    """Return rows times the transposed weights, computed as weights times columns, of which BLAS wants two or more."""
    columns_IC = (x_CI if len(x_CI) > 1 else x_CI.expand(2, -1).contiguous()).t()
    return torch.mm(weight_OI, columns_IC).t()[: len(x_CI)]


def _expert_outer_products(grad_SO: Tensor, x_SI: Tensor, counts_E: Tensor) -> Tensor:
    """Return the gradient of each expert's matrix; it is zero for an expert without rows."""
    counts = counts_E.tolist()
    out_EOI = x_SI.new_empty(len(counts), grad_SO.shape[1], x_SI.shape[1])
    rows = torch.split(grad_SO, counts), torch.split(x_SI, counts), out_EOI.unbind(0)
    for grad_CO, x_CI, out_OI in zip(*rows, strict=True):
        torch.mm(grad_CO.t(), x_CI, out=out_OI)
    return out_EOI


def _register() -> None:
    """Register the products by expert as custom operations, which torch.compile does not trace into."""
    inner = torch.library.custom_op("loopscale::expert_products", _expert_products, mutates_args=())
    outer = torch.library.custom_op("loopscale::expert_outer_products", _expert_outer_products, mutates_args=())

    @inner.register_fake
    def _(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        return x.new_empty(len(x), weight.shape[1])

    @outer.register_fake
    def _(grad: Tensor, x: Tensor, counts: Tensor) -> Tensor:
        return x.new_empty(len(counts), grad.shape[1], x.shape[1])

    def setup(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    def gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, counts = ctx.saved_tensors
        return inner(grad, weight.transpose(1, 2), counts), outer(grad, x, counts), None

    inner.register_autograd(gradient, setup_context=setup)


if not hasattr(torch.ops.loopscale, "expert_products"):  # a checkpoint's own copy of this file may have registered them
    _register()
