"""Greedy tokens from vLLM equal Hugging Face's, eager and compiled. Run by ``make test-vllm`` in its own environment.

It is a script and no test module: vLLM pins other versions than the rest of the tests. Every engine takes fewer
sequences and fewer tokens at a time than the prompts have, so that prefill is chunked and requests join a running
batch; then the same prompts come again and find their prefixes in the cache.
"""

from __future__ import annotations

import os
import sys
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")  # more only wait for each other on models this small
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process is enough, and its errors are readable
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm import LLM, SamplingParams

from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
from loopscale.model.vllm import engines, register

COMMON = list(range(100, 140))
PROMPTS = [list(range(5, 25)), [3, 1, 4, 1, 5], [400] * 9, [7]]
PROMPTS += [[*COMMON, token, token + 1] for token in (10, 20, 30, 40)]
PROMPTS += [list(range(token, token + 3 * token, 3)) for token in (11, 17, 23, 29)]
NEW = 24
SIZES = {
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
MODELS = {
    "routed": {},
    "shared expert, concat": {"shared_expert_intermediate_size": 64, "injection": "concat"},
    "dense": {"num_experts": 1},
}
EAGER = {"routed": (1, 3, 5, 8), "shared expert, concat": (1, 3, 5, 8), "dense": (1, 3, 5, 8)}
COMPILED = {"routed": (1, 3, 5, 8), "shared expert, concat": (3,), "dense": (3,)}
"""Recurrences to compare. A compiled engine takes a minute or more to start."""


ENGINE = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "block_size": 32,
    "enable_prefix_caching": True,
}
SHARING = (3, 1, 5)
"""Recurrences of the engines that use one copy of the weights."""


def from_transformers(model: LoopedMoEForCausalLM, recurrence: int) -> list[list[int]]:
    """Return the greedy continuation of each prompt, one prompt at a time."""
    continuations = []
    for prompt in PROMPTS:
        out = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, recurrence=recurrence)
        continuations.append(out[0, len(prompt) :].tolist())
    return continuations


def from_vllm(engine: LLM, eager: bool) -> tuple[list[list[int]], list[list[int]], int]:
    """Return the same from an engine, twice, and how many tokens the second time found in the prefix cache."""
    compiled = engine.llm_engine.vllm_config.compilation_config.mode
    assert bool(compiled) is not eager, f"enforce_eager is {eager}, and the engine's compilation mode is {compiled}"
    greedy = SamplingParams(temperature=0, max_tokens=NEW, detokenize=False, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = [engine.generate(prompts, greedy, use_tqdm=False) for _ in range(2)]
    first, second = ([list(reply.outputs[0].token_ids) for reply in replies] for replies in outputs)
    return first, second, sum(reply.num_cached_tokens or 0 for reply in outputs[1])


def is_right(title: str, engine: LLM, ours: list[list[int]], eager: bool) -> bool:
    """Print how an engine compares with Hugging Face; tell whether all tokens are the same."""
    first, second, cached = from_vllm(engine, eager)
    agree = sum(one == other == again for one, other, again in zip(ours, first, second, strict=True))
    same = agree == len(PROMPTS) and cached > 0
    how = f"{'✓' if same else '✗'} {'eager' if eager else 'compiled'}: {title}"
    print(f"{how}: {agree} of {len(PROMPTS)} prompts identical, {cached} tokens from the prefix cache", flush=True)
    return same


def one_engine(checkpoint: str, name: str, recurrence: int, ours: list[list[int]], eager: bool) -> bool:
    """Compare an engine; it ends with this function, before the next one starts."""
    engine = LLM(checkpoint, hf_overrides={"recurrence": recurrence}, enforce_eager=eager, **ENGINE)
    return is_right(f"{name}, R = {recurrence}", engine, ours, eager)


def several_engines(checkpoint: str, ours: dict[int, list[list[int]]], eager: bool) -> int:
    """Compare engines that share their weights; return how many comparisons fail."""
    made = engines(checkpoint, SHARING, enforce_eager=eager, **ENGINE)
    title = "routed, one copy of the weights, R = "
    right = [is_right(f"{title}{recurrence}", engine, ours[recurrence], eager) for recurrence, engine in made.items()]
    return [*right, share_weights(made)].count(False)


def share_weights(made: dict[int, LLM]) -> bool:
    """Tell whether all engines hold the very same parameters."""
    held = [
        dict(engine.llm_engine.model_executor.driver_worker.model_runner.model.named_parameters())
        for engine in made.values()
    ]
    same = all(one.keys() == held[0].keys() and all(one[name] is held[0][name] for name in one) for one in held)
    print(f"{'✓' if same else '✗'} {len(held)} engines share {len(held[0])} parameters", flush=True)
    return same


def expected(options: dict[str, object], checkpoint: str, recurrences: set[int]) -> dict[int, list[list[int]]]:
    """Save a model with random weights; return its tokens at each recurrence."""
    torch.manual_seed(0)
    model = LoopedMoEForCausalLM(LoopedMoEConfig(**{**SIZES, **options})).eval()
    for buffer in (each for key, each in model.named_buffers() if key.endswith("e_score_correction_bias")):
        buffer.normal_(std=0.1)  # a trained bias, so that choice and weight differ
    model.save_pretrained(checkpoint)
    return {recurrence: from_transformers(model, recurrence) for recurrence in sorted(recurrences)}


def main(arguments: list[str]) -> int:
    """Compare every shape at every recurrence; ``eager`` or ``compiled`` runs one half. Return how many differ."""
    register()
    wrong = 0
    halves = {"eager": EAGER, "compiled": COMPILED}
    chosen = [name for name in halves if name in arguments] or list(halves)
    with tempfile.TemporaryDirectory() as folder:
        # All of Hugging Face's first: an engine changes the model's class in its process.
        wanted = {name: set().union(*(halves[half][name] for half in chosen)) for name in MODELS}
        runs = {name: expected(options, f"{folder}/{name}", wanted[name]) for name, options in MODELS.items()}
        for half in chosen:
            eager = half == "eager"
            for name, recurrence in ((name, R) for name, passes in halves[half].items() for R in passes):
                wrong += not one_engine(f"{folder}/{name}", name, recurrence, runs[name][recurrence], eager)
            wrong += several_engines(f"{folder}/routed", runs["routed"], eager)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
