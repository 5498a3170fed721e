"""Decoding with vLLM, compiled against eager, side by side on one thread: ``make bench-vllm``.

Both engines live in one process and take turns. CPU time; the compiled engine's start is not counted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm import LLM, SamplingParams

from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
from loopscale.model.vllm import register
from timing import Ratio

BATCH, PROMPT, NEW, ROUNDS = 8, 16, 48, 7


def checkpoint(width: int, recurrence: int, folder: str) -> str:
    """Save a model with random weights: one prelude layer, two looped layers, one coda layer, 8 experts top 2."""
    config = LoopedMoEConfig(
        vocab_size=4096,
        hidden_size=width,
        prelude_layers=1,
        loop_layers=2,
        coda_layers=1,
        recurrence=recurrence,
        num_attention_heads=width // 64,
        num_key_value_heads=2,
        num_experts=8,
        moe_intermediate_size=2 * width,
        max_position_embeddings=256,
    )
    LoopedMoEForCausalLM(config).save_pretrained(folder)
    return folder


def started(folder: str, eager: bool) -> LLM:
    """Return an engine."""
    return LLM(
        folder,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=128,
        max_num_seqs=BATCH,
        max_num_batched_tokens=256,
        enable_prefix_caching=False,
        enforce_eager=eager,
    )


def measure(width: int, recurrence: int) -> None:
    """Print the time of a decoding step with each engine, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint(width, recurrence, folder)
        engines = {"eager": started(folder, eager=True), "compiled": started(folder, eager=False)}
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(4096, (BATCH, PROMPT), generator=generator).tolist()
    greedy = SamplingParams(temperature=0, max_tokens=NEW, detokenize=False, ignore_eos=True)
    times: dict[str, list[float]] = {name: [] for name in engines}
    tokens: dict[str, list[list[int]]] = {}
    for round_ in range(ROUNDS + 1):  # the first is a warm-up
        for name, engine in engines.items():
            start = time.process_time()
            replies = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], greedy, use_tqdm=False)
            if round_:
                times[name].append(time.process_time() - start)
            tokens[name] = [list(reply.outputs[0].token_ids) for reply in replies]
    same = sum(one == other for one, other in zip(tokens["eager"], tokens["compiled"], strict=True))
    print(f"vLLM, width {width}, R = {recurrence}, batch {BATCH}, {NEW} tokens after {PROMPT}")
    for name, seconds in times.items():
        print(f"  {name:<9} {sorted(seconds)[len(seconds) // 2] / NEW * 1e3:6.2f} ms a step")
    print(f"  {Ratio('compiled over eager, wanted 1.20', times['compiled'], times['eager'])}")
    print(f"  identical tokens for {same} of {BATCH} prompts", flush=True)


def main() -> None:
    """Run the sizes given as width:recurrence, or the usual ones."""
    register()
    for size in sys.argv[1:] or ("128:4", "256:4"):
        width, _, recurrence = size.partition(":")
        measure(int(width), int(recurrence or 1))


if __name__ == "__main__":
    main()
