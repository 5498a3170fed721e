# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""The training loss over the passes of a loop.

Shapes: B batch, T tokens, D width, V vocabulary, R passes, X = B T positions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .exit import ExitGate
from .kernels import chunked_cross_entropy


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
