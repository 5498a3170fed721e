"""Speed of the whole trainer against the bare model step and against Hugging Face's Trainer, on one thread.

CPU time of interleaved rounds, as in ``model_speed``. The trainer reads its batches from shards, writes metrics and
looks for divergence; the bare step is forward, backward, clipping and AdamW on batches that are already there. A whole
run is counted as its start, with compilation from an empty cache, and 2,000 steps at the time of the rounds;
``python benchmarks/train_speed.py 64 128`` trains the 2,000 steps of both at these widths instead. Last comes a
profile: what a step of each takes by kind of work.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, TrainerCallback, TrainingArguments
from transformers import Trainer as HuggingFaceTrainer
from transformers.utils import logging

from loopscale.model.balancing import update_biases
from loopscale.train.config import TrainConfig
from loopscale.train.products import fast_products
from loopscale.train.step import apply, gradients
from loopscale.train.trainer import Trainer
from timing import Ratio

CONTEXT, STEPS, RUN, BATCH = 256, 6, 2000, 8
LAYERS = {64: 6, 128: 6, 256: 8}
"""Layers by width."""
KINDS = {
    "products": ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "mkldnn::_linear_pointwise"),
    "attention": (
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    "optimiser": ("aten::_fused_adamw_", "aten::_foreach_norm", "aten::linalg_vector_norm"),
}
"""PyTorch's operations by kind; all others are the rest."""


def config(width: int, compiled: bool) -> TrainConfig:
    """Return a run on the built-in corpus: 8 experts, 2 of them active, R = 1."""
    return TrainConfig.from_dict(
        {
            "model": {
                "width": width,
                "layers": LAYERS[width],
                "edge_layers": 2,
                "head_size": 32,
                "kv_heads": 2,
                "experts": 4,
            },
            "data": {"context": CONTEXT},
            "run": {"tokens": 1e9, "batch": BATCH, "checkpoint_every": 0, "compile": compiled},
        }
    )


def bare(trainer: Trainer) -> Callable[[], object]:
    """Return the model's step alone, on batches that lie ready: on a single one its routing would collapse."""
    parts = cycle([trainer.batches.batch(step) for step in range(64)])

    def steps() -> None:
        with fast_products(bool(trainer.config.run.compile)):
            for _ in range(STEPS):
                result = gradients(trainer.model, [next(parts)], trainer.process, False)
                apply(trainer.model, trainer.optimizer, trainer.process, 1.0)
                update_biases(trainer.model, result.counts)

    trainer.model.train()
    return steps


def whole(trainer: Trainer) -> Callable[[], object]:
    """Return the same number of steps of the trainer."""
    return lambda: trainer.train(until=trainer.step + STEPS)


def seconds() -> float:
    """Return the CPU time of this process and of the compilers that it started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Clock(TrainerCallback):  # type: ignore[misc]
    """CPU time at the end of each step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Note the time."""
        self.ends.append(time.process_time())


def hugging_face(trainer: Trainer, folder: Path, count: int = STEPS) -> Callable[[], float]:
    """Return a Hugging Face Trainer's CPU seconds for the steps, on Qwen3-MoE of the same sizes and the same tokens."""
    own, run = trainer.model_config, trainer.config
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=own.vocab_size,
            hidden_size=own.hidden_size,
            num_hidden_layers=own.num_hidden_layers,
            num_attention_heads=own.num_attention_heads,
            num_key_value_heads=own.num_key_value_heads,
            head_dim=own.head_dim,
            num_experts=own.num_experts,
            num_experts_per_tok=own.num_experts_per_tok,
            moe_intermediate_size=own.moe_intermediate_size,
            norm_topk_prob=True,
            tie_word_embeddings=True,
            max_position_embeddings=CONTEXT,
        )
    )
    model.set_experts_implementation("grouped_mm")
    rows = [row for step in range(count + 3) for row in trainer.batches.batch(step).ids]
    dataset = [{"input_ids": torch.from_numpy(row), "labels": torch.from_numpy(row)} for row in rows]

    def steps() -> float:
        clock = Clock()
        arguments = TrainingArguments(
            output_dir=str(folder),
            max_steps=count + 2,
            per_device_train_batch_size=run.run.batch,
            learning_rate=run.optimizer.learning_rate,
            adam_beta2=0.95,
            adam_epsilon=1e-15,
            weight_decay=0.1,
            lr_scheduler_type="cosine",
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        HuggingFaceTrainer(model, arguments, train_dataset=dataset, callbacks=[clock]).train()
        return clock.ends[-1] - clock.ends[1]

    return steps


def shares(steps: Callable[[], object]) -> str:
    """Return what kinds of work take of the time of steps."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        steps()
    taken = dict.fromkeys((*KINDS, "rest"), 0.0)
    for event in profiler.key_averages():
        kind = next((kind for kind, names in KINDS.items() if event.key in names), "rest")
        taken[kind] += event.self_cpu_time_total
    return ", ".join(f"{kind} {time / sum(taken.values()):.0%}" for kind, time in taken.items())


def measure(width: int, rounds: int) -> None:
    """Compare at one size: our trainer and the bare step, plain and with compiled blocks, and Hugging Face's Trainer.

    The peer is not compiled: torch.compile fails on its grouped products in float32.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "compiled")
        work: dict[str, Callable[[], object]] = {}
        starts: dict[str, float] = {}
        for kind in ("plain", "compiled"):
            began = seconds()
            trainer = Trainer(config(width, kind == "compiled"), folder / f"{kind}-a")
            starts[f"trainer, {kind}"] = seconds() - began
            other = Trainer(trainer.config, folder / f"{kind}-b")
            work |= {f"trainer, {kind}": whole(trainer), f"bare step, {kind}": bare(other)}
        began = seconds()
        peer = hugging_face(trainer, folder / "peer")
        starts["Hugging Face"] = seconds() - began
        times: dict[str, list[float]] = {}
        for number in range(rounds + 1):
            for each, steps in work.items():
                began = seconds()
                steps()
                times.setdefault(each, []).append(seconds() - began)
            began = seconds()
            times.setdefault("Hugging Face", []).append(peer())
            if number == 0:  # the steps before those that are timed, too
                times["Hugging Face"][0] = seconds() - began
        kinds = {each: shares(steps) for each, steps in [*work.items(), ("Hugging Face", peer)] if "bare" not in each}
    # The first round warms up and compiles.
    starts = {each: taken + times[each][0] - statistics.median(times[each][1:]) for each, taken in starts.items()}
    times = {each: taken[1:] for each, taken in times.items()}
    print(
        f"training, width {width}, {LAYERS[width]} layers, 8 experts top 2, {BATCH} x {CONTEXT} tokens, "
        f"{STEPS} steps a round"
    )
    for each, taken in times.items():
        print(f"  {each:<19} {STEPS * BATCH * CONTEXT / statistics.median(taken):7.0f} tokens/s")
    for kind in ("plain", "compiled"):
        ours = times[f"trainer, {kind}"]
        print(f"  {Ratio(f'{kind}: of the bare step, wanted 0.95', ours, times[f'bare step, {kind}'])}")
        print(f"  {Ratio(f'{kind}: over Hugging Face Trainer, wanted 1.25', ours, times['Hugging Face'])}")
        ends = {each: [starts[each] + RUN / STEPS * one for one in times[each]] for each in starts}
        run = Ratio(f"{kind}: over it in a run of {RUN:,} steps", ends[f"trainer, {kind}"], ends["Hugging Face"])
        print(f"  {run}, of which {starts[f'trainer, {kind}']:.1f} s and {starts['Hugging Face']:.1f} s to start")
    for each, text in kinds.items():
        print(f"  {each:<19} {text}", flush=True)


def measure_run(width: int) -> None:
    """Train a whole compiled run and the peer's, each from its start to its last step."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "compiled")
        began = seconds()
        trainer = Trainer(config(width, compiled=True), folder / "ours")
        trainer.train(until=RUN)
        ours, began = seconds() - began, seconds()
        hugging_face(trainer, folder / "peer", RUN - 2)()
        print(f"{Ratio(f'width {width}, {RUN:,} steps from start to end', [ours], [seconds() - began])}", flush=True)


def main() -> None:
    """Run everything."""
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._inductor.config.compile_threads = 1  # in this process, whose time is counted
    for width in map(int, sys.argv[1:]):
        measure_run(width)
    if not sys.argv[1:]:
        measure(64, rounds=7)
        measure(128, rounds=5)
        measure(256, rounds=3)


if __name__ == "__main__":
    main()
