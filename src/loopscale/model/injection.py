# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""How the loop's input returns before each pass.

Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from .blocks import RMSNorm
from .config import LoopedMoEConfig


class GatedInjection(nn.Module):
    """A mean of state and input, weighted by a gate for each token and channel; it starts near the state."""

    CONSTANTS: ClassVar[dict[str, float]] = {"bias": 2.0}

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, 2 * width))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, state_BTD: Tensor, input_BTD: Tensor) -> Tensor:
        """Return gate * state + (1 - gate) * input."""
        gate_BTD = functional.linear(torch.cat((state_BTD, input_BTD), dim=-1), self.weight, self.bias).sigmoid()
        return torch.lerp(input_BTD, state_BTD, gate_BTD)


class DiagonalInjection(nn.Module):
    """A stable linear system of one state for each channel: decay * state + gain * input, with the decay below 1.

    The decay is exp(-exp(rate)), as in Parcae; it starts at the mean of state and input.
    """

    CONSTANTS: ClassVar[dict[str, float]] = {"rate": math.log(math.log(2.0)), "gain": 0.5}

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.empty(width))
        self.gain = nn.Parameter(torch.empty(width))

    def forward(self, state_BTD: Tensor, input_BTD: Tensor) -> Tensor:
        """Return the state that a pass starts from."""
        return torch.exp(-torch.exp(self.rate)) * state_BTD + self.gain * input_BTD


class NormedInjection(nn.Module):
    """The normalised state plus the input through a matrix: the state keeps its size over any number of passes."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.norm = RMSNorm(width, eps)
        self.proj = nn.Linear(width, width, bias=False)

    def forward(self, state_BTD: Tensor, input_BTD: Tensor) -> Tensor:
        """Return RMSNorm(state) + W input."""
        joined_BTD: Tensor = self.norm(state_BTD) + self.proj(input_BTD)
        return joined_BTD


def build_injection(config: LoopedMoEConfig) -> nn.Module | None:
    """Return the module that joins state and input before a pass, if the config's injection has weights.

    "concat" stays a plain linear layer, which serving engines replace by their own.
    """
    width = config.hidden_size
    if config.injection == "concat":
        return nn.Linear(2 * width, width, bias=False)
    if config.injection == "gated":
        return GatedInjection(width)
    if config.injection == "diagonal":
        return DiagonalInjection(width)
    return NormedInjection(width, config.rms_norm_eps) if config.injection == "normed" else None


def inject(kind: str, module: nn.Module | None, state_BTD: Tensor, input_BTD: Tensor) -> Tensor:
    """Return what a pass starts from: the state, with the loop's input by an injection of that kind."""
    if kind == "none":
        return state_BTD
    if module is None:
        return state_BTD + input_BTD
    joined_BTD: Tensor = (
        module(torch.cat((state_BTD, input_BTD), dim=-1)) if kind == "concat" else module(state_BTD, input_BTD)
    )
    return joined_BTD
