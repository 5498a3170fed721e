"""The weights that a run starts from."""

from __future__ import annotations

import math

import torch

from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM

RESIDUAL = ("o_proj.weight", "down_proj.weight", "down_proj")
"""The matrices that write to the residual stream."""


def new_model(config: LoopedMoEConfig, seed: int, residual_init: str) -> LoopedMoEForCausalLM:
    """Return a fresh model; the same seed gives models of equal shape the same draws, whatever their recurrence."""
    torch.manual_seed(seed)
    model = LoopedMoEForCausalLM(config)
    if residual_init != "none":
        passes = config.recurrence if residual_init == "unrolled" else 1
        depth = config.prelude_layers + passes * config.loop_layers + config.coda_layers
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(RESIDUAL):
                    weight.mul_(1 / math.sqrt(2 * depth))
    return model
