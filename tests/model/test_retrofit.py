"""Pretrained models of other families become looped models that equal them at R = 1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from loopscale.model.retrofit import retrofit

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 0,
}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 6}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "llama-biased": ("llama", {"attention_bias": True, "head_dim": 10}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR, "num_key_value_heads": 4}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-wide-window": ("mistral", {"sliding_window": 64}),
    "qwen2": ("qwen2", {"num_key_value_heads": 1}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 8, "rope_parameters": YARN}),
    "qwen3-tied-biased": ("qwen3", {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "moe_intermediate_size": 20, "head_dim": 8}),
    "qwen3_moe-normed": ("qwen3_moe", {**EXPERTS, "moe_intermediate_size": 20, "norm_topk_prob": True, "head_dim": 6}),
    "olmoe": ("olmoe", EXPERTS),
    "olmoe-tied-normed": ("olmoe", {**EXPERTS, "norm_topk_prob": True, "tie_word_embeddings": True}),
    "mixtral": ("mixtral", EXPERTS),
    "mixtral-tied": ("mixtral", {**EXPERTS, "tie_word_embeddings": True, "num_key_value_heads": 4}),
}


def pretrained(kind: str, seed: int = 0, **fields: Any) -> PreTrainedModel:
    """Return a small model of another family with random weights, norms and biases."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **fields}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                weight.normal_(std=0.3)
    return model.eval()


def ids() -> torch.Tensor:
    return torch.randint(61, (2, 17), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model: Any, **options: Any) -> torch.Tensor:
    out: torch.Tensor = model(input_ids=ids(), **options).logits
    return out


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Check that logits agree to 1e-5 of their size, in float32."""
    assert (actual - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_equals_the_original_at_one_pass(name: str) -> None:
    kind, fields = MODELS[name]
    original = pretrained(kind, **fields)
    looped = retrofit(original, prelude=1, coda=1, recurrence=3)
    expected = logits(original)
    close(logits(looped, recurrence=1), expected)
    assert (logits(looped) - expected).abs().max() > 1e-2  # three passes are another function
    assert looped.config.recurrence == 3
    assert looped.config.to_architecture().parameters == sum(weight.numel() for weight in looped.parameters())
    assert looped.config.to_architecture().parameters == sum(weight.numel() for weight in original.parameters())
