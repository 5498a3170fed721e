"""Products of rows with their experts' matrices, for eager PyTorch and as operations that torch.compile leaves alone.

Shapes: T tokens, K experts of a token, S rows sorted by expert, E experts, C the rows of the expert at hand; I and O
the widths of what goes in and what comes out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def tokens_of_experts(ids_TK: Tensor, experts: int) -> Tensor:
    """Return how many rows each expert has."""
    if torch.compiler.is_compiling():  # the compiler cannot know how long a bincount is
        return (ids_TK.flatten()[:, None] == torch.arange(experts, device=ids_TK.device)).sum(0)
    return torch.bincount(ids_TK.flatten(), minlength=experts)


def products(x_SI: Tensor, weight_EOI: Tensor, counts: list[int]) -> Tensor:
    """Return each row times its expert's matrix."""
    out_SO = x_SI.new_empty(len(x_SI), weight_EOI.shape[1])
    rows = torch.split(x_SI, counts), weight_EOI.unbind(0), torch.split(out_SO, counts)
    for x_CI, weight_OI, out_CO in zip(*rows, strict=True):
        if len(x_CI):
            torch.mm(x_CI, weight_OI.t(), out=out_CO)
    return out_SO


def _expert_products(x_SI: Tensor, weight_EOI: Tensor, counts_E: Tensor) -> Tensor:
    return products(x_SI, weight_EOI, counts_E.tolist())


def _expert_outer_products(grad_SO: Tensor, x_SI: Tensor, counts_E: Tensor) -> Tensor:
    """Return the gradient of each expert's matrix; of one without rows it is zero."""
    counts = counts_E.tolist()
    out_EOI = x_SI.new_empty(len(counts), grad_SO.shape[1], x_SI.shape[1])
    rows = torch.split(grad_SO, counts), torch.split(x_SI, counts), out_EOI.unbind(0)
    for grad_CO, x_CI, out_OI in zip(*rows, strict=True):
        torch.mm(grad_CO.t(), x_CI, out=out_OI)
    return out_EOI


def _register() -> None:
    """Make the products by expert operations of their own, which torch.compile takes as they are."""
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


if not hasattr(torch.ops.loopscale, "expert_products"):  # a checkpoint's own copy may have come first
    _register()
