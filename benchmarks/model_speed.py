"""Speed of the looped MoE against Hugging Face's Qwen3-MoE and a dense model, side by side, on one thread.

    python benchmarks/model_speed.py [--parts training decoding] [--widths 128 256 512]

CPU time of interleaved rounds: the machine's drift cancels within a round, and the spread is shown. Each peer has a
separate config, because Transformers keeps the experts implementation there, and models that share one config all run
the last that was set.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.integrations import moe as hf_moe
from transformers.utils import logging

from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM, loading
from timing import Ratio

VOCABULARY, LAYERS, EXPERTS, K, CONTEXT = 4096, 8, 8, 2, 256
WIDTHS = (128, 256, 512)
PARTS = ("training", "decoding", "speculation", "recurrence")
IMPLEMENTATIONS = ("eager", "grouped_mm", "batched_mm")
Times = dict[str, list[float]]


def ours(width: int, experts: int = EXPERTS, **options: Any) -> LoopedMoEForCausalLM:
    """Return our model at R = 1: eight layers, each used once; ``experts=1`` is dense with equal active FLOPs."""
    return LoopedMoEForCausalLM(
        LoopedMoEConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            prelude_layers=2,
            loop_layers=LAYERS - 4,
            coda_layers=2,
            num_attention_heads=width // 64,
            num_key_value_heads=min(4, width // 64),
            num_experts=experts,
            num_experts_per_tok=K,
            moe_intermediate_size=4 * width // K,
            intermediate_size=4 * width,
            max_position_embeddings=512,
            **options,
        )
    )


def qwen(width: int, implementation: str) -> Qwen3MoeForCausalLM:
    """Return Hugging Face's model of the same sizes, with one of its experts implementations."""
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=LAYERS,
        num_attention_heads=width // 64,
        num_key_value_heads=min(4, width // 64),
        head_dim=64,
        num_experts=EXPERTS,
        num_experts_per_tok=K,
        moe_intermediate_size=4 * width // K,
        norm_topk_prob=True,
        tie_word_embeddings=True,
        max_position_embeddings=512,
    )
    model = Qwen3MoeForCausalLM(copy.deepcopy(config))
    model.set_experts_implementation(implementation)
    return model


def implementation_used(model: torch.nn.Module) -> str:
    """Return the experts implementation that a forward really calls."""
    known = hf_moe.ALL_EXPERTS_FUNCTIONS._global_mapping
    before, called = dict(known), []
    for name, function in before.items():
        known[name] = lambda *a, _name=name, _function=function, **k: (called.append(_name), _function(*a, **k))[1]
    try:
        with torch.no_grad():
            model(torch.zeros(1, 2, dtype=torch.long))
    finally:
        known.update(before)
    return called[0] if called else "eager"


def interleaved(work: dict[str, Callable[[], object]], rounds: int) -> Times:
    """Time each piece of work in turn, ``rounds`` times after a warm-up."""
    for run in work.values():
        run()
    times: Times = {name: [] for name in work}
    for _ in range(rounds):
        for name, run in work.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    return times


def peers(width: int) -> dict[str, torch.nn.Module]:
    """Return Hugging Face's model with each implementation, checked to run it."""
    models = {name: qwen(width, name) for name in IMPLEMENTATIONS}
    for name, model in models.items():
        assert implementation_used(model) == name, (name, implementation_used(model))
    return models


def best(times: Times, names: tuple[str, ...]) -> str:
    """Return the fastest of some, by its median."""
    return min(names, key=lambda name: statistics.median(times[name]))


def train_step(model: torch.nn.Module, ids: torch.Tensor, **options: Any) -> Callable[[], object]:
    """Return forward and backward in training mode."""
    model.train()

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(input_ids=ids, labels=ids, use_cache=False, **options).loss.backward()

    return step


def peak() -> float:
    """Return the FLOP/s of a large float32 matrix product, the best of several."""
    a, b = torch.randn(2, 1024, 1024)
    times = interleaved({"mm": lambda: torch.mm(a, b)}, 15)["mm"]
    return 2 * 1024**3 / min(times)


def training(width: int, batch: int, rounds: int) -> None:
    """Compare training steps at one size."""
    ids = torch.randint(VOCABULARY, (batch, CONTEXT), generator=torch.Generator().manual_seed(0))
    # batched_mm copies a whole expert for every row: it needs gigabytes here and is left out of training.
    names = ("eager", "grouped_mm")
    work = {name: train_step(model, ids) for name, model in peers(width).items() if name in names}
    model = ours(width)
    work |= {"ours": train_step(model, ids), "dense": train_step(ours(width, 1), ids)}
    top, times = peak(), interleaved(work, rounds)
    top = max(top, peak())
    peer = best(times, names)
    print(f"training, width {width}, {LAYERS} layers, {EXPERTS} experts top {K}, {batch} x {CONTEXT} tokens")
    for name, seconds in times.items():
        print(f"  {name:<11} {ids.numel() / statistics.median(seconds):7.0f} tokens/s")
    print(f"  {Ratio(f'over Qwen3-MoE ({peer}), wanted 1.30', times['ours'], times[peer])}")
    print(f"  {Ratio('of the dense model of equal active FLOPs, wanted 0.75', times['ours'], times['dense'])}")
    flops = model.config.to_architecture().real_train_flops_per_token(context=CONTEXT) * ids.numel()
    rate = flops / statistics.median(times["ours"])
    print(f"  {rate / 1e9:.0f} GFLOP/s, {rate / top:.0%} of the matmul peak of {top / 1e9:.0f} in this run", flush=True)


def decoding(width: int, batch: int, rounds: int, new: int = 48) -> None:
    """Compare greedy ``generate`` with a cache."""
    ids = torch.randint(VOCABULARY, (batch, 16), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)

    def generation(model: Any) -> Callable[[], object]:
        model.eval()
        options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        return lambda: model.generate(ids, attention_mask=mask, **options)

    work = {name: generation(model) for name, model in peers(width).items()}
    times = interleaved(work | {"ours": generation(ours(width))}, rounds)
    peer = best(times, IMPLEMENTATIONS)
    print(f"greedy decoding, width {width}, batch {batch}, {new} tokens after 16")
    for name, seconds in times.items():
        print(f"  {name:<11} {statistics.median(seconds) / new * 1e3:6.2f} ms a step")
    print(
        f"  {Ratio(f'over Qwen3-MoE ({peer}), wanted {1.3 if batch == 1 else 1.1}', times['ours'], times[peer])}",
        flush=True,
    )


PROMPTS = (
    "The state of",
    "It was",
    "We must",
    "Fellow citizens",
    "The Congress of the United States",
    "My fellow Americans, the",
    "In the last year the Government",
    "Peace with all nations",
    "The Secretary of the Treasury reports that",
    "There is no",
    "I recommend that Congress",
    "Our army and navy",
)


def speculation(rounds: int, new: int = 40) -> None:
    """Compare self-speculative with plain greedy decoding of the demo model at R = 4, one prompt at a time."""
    model, tokenizer = loading.load(str(loading.DEMO), dtype=torch.float32)
    model.generation_config.eos_token_id = None
    plain = {"max_new_tokens": new, "do_sample": False, "recurrence": 4}
    drafts = {**plain, "draft_recurrence": 1, "return_dict_in_generate": True}
    times: Times = {"plain": [], "drafted": []}
    drafted = accepted = same = 0
    for ids in [tokenizer(text, return_tensors="pt").input_ids for _ in range(rounds + 1) for text in PROMPTS]:
        starts = [time.process_time()]
        expected = model.generate(ids, **plain)
        starts.append(time.process_time())
        out = model.generate(ids, **drafts)
        starts.append(time.process_time())
        times["plain"].append(starts[1] - starts[0])
        times["drafted"].append(starts[2] - starts[1])
        drafted, accepted = drafted + int(out.drafted.sum()), accepted + int(out.accepted.sum())
        same += torch.equal(out.sequences, expected)
    print(f"self-speculative decoding, demo model, R = 4, one pass drafts, {new} tokens after {len(PROMPTS)} prompts")
    ours, peer = (times[name][len(PROMPTS) :] for name in ("drafted", "plain"))  # the first round is a warm-up
    print(f"  {Ratio('over plain decoding, wanted 1.30', ours, peer)}; of all time {sum(peer) / sum(ours):.2f}x")
    print(
        f"  {accepted / drafted:.0%} of drafted tokens confirmed; identical tokens in {same} of "
        f"{(rounds + 1) * len(PROMPTS)} runs",
        flush=True,
    )


def recurrence(width: int, batch: int, rounds: int) -> None:
    """Fit a line through the cost of a training step over R."""
    ids = torch.randint(VOCABULARY, (batch, CONTEXT), generator=torch.Generator().manual_seed(0))
    model, passes = ours(width), (1, 2, 3, 4, 6)
    times = interleaved({str(R): train_step(model, ids, recurrence=R) for R in passes}, rounds)
    cost = np.array([statistics.median(times[str(R)]) for R in passes])
    slope, intercept = np.polyfit(passes, cost, 1)
    off = np.abs(cost - (intercept + slope * np.array(passes))) / cost
    print(f"cost over R, width {width}, {batch} x {CONTEXT} tokens: {intercept:.3f} s + {slope:.3f} s R")
    measured = ", ".join(f"R={R} {seconds:.3f}" for R, seconds in zip(passes, cost, strict=True))
    print(f"  {measured}; furthest from the line {off.max():.1%}", flush=True)


def main() -> None:
    """Run everything, or some parts at some widths."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--widths", type=int, nargs="*", default=WIDTHS)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for width in options.widths:
        if "training" in options.parts:
            training(width, batch=8 if width < 512 else 4, rounds=options.rounds)
        if "decoding" in options.parts:
            decoding(width, batch=1, rounds=options.rounds)
            decoding(width, batch=8, rounds=options.rounds)
    if "speculation" in options.parts:
        speculation(rounds=3)
    if "recurrence" in options.parts:
        recurrence(256, batch=2, rounds=options.rounds)


if __name__ == "__main__":
    main()
