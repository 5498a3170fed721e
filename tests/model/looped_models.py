"""Small models for the tests: one line of numbers each."""

from __future__ import annotations

from typing import Any

import torch

from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "prelude_layers": 1,
    "loop_layers": 2,
    "coda_layers": 1,
    "recurrence": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
"""Weights large enough for passes, experts and tokens to differ."""

WITHOUT_LOOPSCALE = """
import sys, torch

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "loopscale":
            raise ImportError(name)

sys.meta_path.insert(0, Absent())
from transformers import AutoModelForCausalLM
"""
"""How a script begins that loads a checkpoint as if loopscale were not installed."""


def config(**changes: Any) -> LoopedMoEConfig:
    """Return the small config with some fields changed."""
    return LoopedMoEConfig(**{**SMALL, **changes})


def model(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> LoopedMoEForCausalLM:
    """Return a small model with random weights, norms and biases, in evaluation mode.

    In float64 two paths that compute the same thing differ by rounding alone, far below ``same``'s tolerance and far
    from any tie between tokens or experts, whichever kernels a machine has.
    """
    torch.manual_seed(seed)
    made = LoopedMoEForCausalLM(config(**changes))
    with torch.no_grad():
        for name, tensor in (*made.named_parameters(), *made.named_buffers()):
            if "norm" in name:
                tensor.uniform_(0.5, 1.5)
            elif name.endswith("e_score_correction_bias"):
                tensor.normal_(std=0.1)
    return made.to(dtype).eval()


def same(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-9) -> None:
    """Check that two float64 results of different code paths, kernels or alignments differ by rounding alone."""
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    """Return random token ids."""
    return torch.randint(SMALL["vocab_size"], shape, generator=torch.Generator().manual_seed(seed))
