# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""The loss of a call over the passes of a loop, with logits or, a few rows at a time, without storing them.

Shapes: B batch, T tokens, D width, V vocabulary, R passes, X = B T positions, C of them whose logits are held at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .exit import ExitGate

if TYPE_CHECKING:
    from .model import LoopedMoEForCausalLM


def loss_terms(
    model: LoopedMoEForCausalLM,
    hiddens: tuple[Tensor, ...],
    states: tuple[Tensor, ...] | None,
    pass_logits: tuple[Tensor, ...],
    z_loss: Tensor | None,
    labels: Tensor,
    items: int | Tensor | None,
    options: dict[str, Any],
) -> dict[str, Tensor | None]:
    """Return the loss of a call and its terms.

    The cross-entropy is that of the last pass; in training it is a weighted mean over the passes, or with an exit
    gate the mean expected over its distribution. Without ``pass_logits`` no logits are stored.
    """
    config, gate, head_VD = model.config, model.model.exit_gate, model.lm_head.weight
    targets = targets_of(labels, items)
    weights = pass_weights(config.loop_loss_weights if model.training else None, len(hiddens))
    exit_loss: Tensor | None = None
    if states is not None and gate is not None:
        cross_entropy, negative_entropy = expected_loss(hiddens, states, gate, head_VD, targets)
        exit_loss = config.exit_entropy_coef * negative_entropy
    elif pass_logits:
        options = {**options, "vocab_size": config.vocab_size, "num_items_in_batch": items}
        cross_entropy = torch.zeros((), device=labels.device)
        for logits_BTV, weight in zip(pass_logits, weights, strict=True):
            if weight:
                loss = model.loss_function(logits=logits_BTV, labels=labels, **options)
                cross_entropy = cross_entropy + loss * weight
    else:
        cross_entropy = loss_of_passes(hiddens, weights, head_VD, targets)
    loss = cross_entropy
    if model.training and z_loss is not None:
        share = 1.0 if items is None else targets.share
        loss = loss + config.router_z_loss_coef * z_loss * share
    if exit_loss is not None:
        loss = loss + exit_loss
    return {"loss": loss, "cross_entropy": cross_entropy, "exit_loss": exit_loss}


class Targets(NamedTuple):
    """The next tokens that a call is trained on."""

    next_X: Tensor
    """The next token, or -100 where there is none to predict."""
    scale_X: Tensor
    """Weight of each position in the loss: one over the number of targets, or zero."""
    share: Tensor
    """The call's part of the targets of the whole batch."""


def targets_of(labels_BT: Tensor, items: int | Tensor | None) -> Targets:
    """Return the targets of a call; ``items`` is the number of targets of a whole batch that it is a part of."""
    next_X = functional.pad(labels_BT[:, 1:], (0, 1), value=-100).flatten()
    is_target_X = next_X != -100
    count = is_target_X.sum()
    total = count.clamp(min=1) if items is None else items
    return Targets(next_X, is_target_X / total, count / total)


def pass_weights(chosen: list[float] | None, passes: int) -> list[float]:
    """Return the weight of each pass in the loss, which add up to one; without a choice the last has it all.

    Passes beyond the last chosen weight have that of the last.
    """
    weights = [0.0] * (passes - 1) + [1.0]
    if chosen is not None and sum(chosen[:passes]) > 0:
        weights = [chosen[min(index, len(chosen) - 1)] for index in range(passes)]
    return [weight / sum(weights) for weight in weights]


def loss_of_passes(hiddens: tuple[Tensor, ...], weights: list[float], head_VD: Tensor, targets: Targets) -> Tensor:
    """Return the weighted cross-entropy of the passes without storing their logits; zero without targets."""
    rows = [(hidden_BTD.flatten(0, 1), weight) for hidden_BTD, weight in zip(hiddens, weights, strict=True) if weight]
    return chunked_cross_entropy(
        torch.cat([hidden_XD for hidden_XD, _ in rows]) if len(rows) > 1 else rows[0][0],
        head_VD,
        targets.next_X.repeat(len(rows)),
        torch.cat([targets.scale_X * weight for _, weight in rows]),
    )


def expected_loss(
    hiddens: tuple[Tensor, ...], states: tuple[Tensor, ...], gate: ExitGate, head_VD: Tensor, targets: Targets
) -> tuple[Tensor, Tensor]:
    """Return the loss expected over the exit distribution of each token, and minus the entropy of that."""
    chance_RBT, log_RBT = gate.distribution(states)
    expected = chunked_cross_entropy(
        torch.cat([hidden_BTD.flatten(0, 1) for hidden_BTD in hiddens]),
        head_VD,
        targets.next_X.repeat(len(hiddens)),
        (chance_RBT.flatten(1) * targets.scale_X).flatten(),
    )
    negative_entropy_X = (chance_RBT * log_RBT).sum(0).flatten()
    return expected, (negative_entropy_X * targets.scale_X).sum()


CHUNK = 1 << 24
"""Logits that the chunked loss holds at once: 64 MB in float32."""


def chunked_cross_entropy(hidden_XD: Tensor, weight_VD: Tensor, labels_X: Tensor, scale_X: Tensor) -> Tensor:
    """Return the sum of each row's cross-entropy times its scale, a few rows at a time: logits of all rows are never
    stored, neither are their gradients.

    The gradients of hidden states and weights are computed in forward, where each chunk of logits is at hand.
    """
    rows = max(16, CHUNK // len(weight_VD))
    if torch.is_grad_enabled() and (hidden_XD.requires_grad or weight_VD.requires_grad):
        return _ChunkedCrossEntropy.apply(hidden_XD, weight_VD, labels_X, scale_X, rows)  # type: ignore[no-any-return, no-untyped-call]
    total = torch.zeros((), device=hidden_XD.device)
    for hidden_CD, label_C, scale_C in zip(*(x.split(rows) for x in (hidden_XD, labels_X, scale_X)), strict=True):  # type: ignore[no-untyped-call]
        logits_CV = functional.linear(hidden_CD, weight_VD).float()
        total += ((logits_CV.logsumexp(-1) - _label_logits(logits_CV, label_C)) * scale_C).sum()
    return total


def _label_logits(logits_CV: Tensor, label_C: Tensor) -> Tensor:
    """Return each row's logit of its label; a row without a target has scale zero, so that any logit will do."""
    return logits_CV.gather(1, label_C.clamp(min=0).unsqueeze(1)).squeeze(1)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_XD: Tensor, weight_VD: Tensor, labels_X: Tensor, scale_X: Tensor, rows: int) -> Tensor:
        total = torch.zeros((), device=hidden_XD.device)
        grad_hidden_XD = torch.empty_like(hidden_XD)
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32)
        loss_X = torch.empty_like(scale_X)
        for start in range(0, len(hidden_XD), rows):
            chunk = slice(start, start + rows)
            hidden_CD, label_C, scale_C = hidden_XD[chunk], labels_X[chunk], scale_X[chunk]
            logits_CV = functional.linear(hidden_CD, weight_VD).float()
            label_logit_C, norm_C = _label_logits(logits_CV, label_C), logits_CV.logsumexp(-1)
            loss_X[chunk] = norm_C - label_logit_C
            total += (loss_X[chunk] * scale_C).sum()
            # The gradient of the logits is scale * (softmax - one-hot).
            grad_CV = logits_CV.sub_(norm_C.unsqueeze(1)).exp_()
            minus_one_C = (label_logit_C - norm_C).exp() - 1
            grad_CV.scatter_(1, label_C.clamp(min=0).unsqueeze(1), minus_one_C.unsqueeze(1))
            grad_CV = grad_CV.mul_(scale_C.unsqueeze(1)).to(hidden_XD.dtype)
            torch.mm(grad_CV, weight_VD, out=grad_hidden_XD[chunk])
            if hidden_XD.dtype == torch.float32:
                grad_weight_VD.addmm_(grad_CV.t(), hidden_CD)
            else:
                grad_weight_VD += grad_CV.t() @ hidden_CD
        ctx.save_for_backward(grad_hidden_XD, grad_weight_VD.to(weight_VD.dtype), loss_X)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_XD, grad_weight_VD, loss_X = ctx.saved_tensors
        grad_scale_X = loss_X * grad if ctx.needs_input_grad[3] else None
        return grad_hidden_XD * grad, grad_weight_VD * grad, None, grad_scale_X, None
