"""Greedy tokens from vLLM equal Hugging Face's at R = 1, 3, 5. Run by ``make test-vllm`` in a separate environment.

It is a script and no test module: vLLM pins other versions than the rest of the tests.
"""

from __future__ import annotations

import os
import sys
import tempfile

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process is enough, and its errors are readable
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm import LLM, SamplingParams

from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
from loopscale.model.vllm import register

PROMPTS = [list(range(5, 25)), [3, 1, 4, 1, 5], [400] * 9]
NEW = 24


def models() -> dict[str, LoopedMoEConfig]:
    """Return the shapes to compare: routed with and without a shared expert, a bias, an injection, and dense."""
    sizes = {
        "vocab_size": 512,
        "hidden_size": 128,
        "prelude_layers": 1,
        "loop_layers": 2,
        "coda_layers": 1,
        "recurrence": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_experts": 8,
        "intermediate_size": 256,
        "moe_intermediate_size": 64,
        "max_position_embeddings": 256,
        "initializer_range": 0.15,
    }
    return {
        "routed": LoopedMoEConfig(**sizes),
        "shared expert, concat": LoopedMoEConfig(**sizes, shared_expert_intermediate_size=64, injection="concat"),
        "dense": LoopedMoEConfig(**{**sizes, "num_experts": 1}),
    }


def from_transformers(model: LoopedMoEForCausalLM, recurrence: int) -> list[list[int]]:
    """Return the greedy continuation of each prompt."""
    found = []
    for prompt in PROMPTS:
        out = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, recurrence=recurrence)
        found.append(out[0, len(prompt) :].tolist())
    return found


def from_vllm(checkpoint: str, recurrence: int) -> list[list[int]]:
    """Return the same from an engine whose recurrence is set by ``hf_overrides``; the plugin makes it eager."""
    engine = LLM(
        checkpoint,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=128,
        hf_overrides={"recurrence": recurrence},
    )
    assert engine.llm_engine.vllm_config.model_config.enforce_eager
    greedy = SamplingParams(temperature=0, max_tokens=NEW, detokenize=False, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    return [list(each.outputs[0].token_ids) for each in engine.generate(prompts, greedy, use_tqdm=False)]


def expected(config: LoopedMoEConfig, checkpoint: str) -> dict[int, list[list[int]]]:
    """Save a model with random weights; return its tokens at each recurrence."""
    torch.manual_seed(0)
    model = LoopedMoEForCausalLM(config).eval()
    for buffer in (each for key, each in model.named_buffers() if key.endswith("e_score_correction_bias")):
        buffer.normal_(std=0.1)  # a trained bias, so that choice and weight differ
    model.save_pretrained(checkpoint)
    return {recurrence: from_transformers(model, recurrence) for recurrence in (1, 3, 5)}


def main() -> int:
    """Compare every shape at every recurrence; return how many differ."""
    register()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        # All of Hugging Face's first: an engine changes the model's class in its process.
        runs = {name: expected(config, f"{folder}/{name}") for name, config in models().items()}
        for name, tokens in runs.items():
            for recurrence, ours in tokens.items():
                same = ours == from_vllm(f"{folder}/{name}", recurrence)
                wrong += not same
                print(f"{'✓' if same else '✗'} {name}, R = {recurrence}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
