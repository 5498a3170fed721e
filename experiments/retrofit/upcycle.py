"""Turn a small dense run into experts and train on: what the copies gain over training the dense model as long.

    python experiments/retrofit/upcycle.py --out out/upcycle

The dense run is exported as a Llama, converted with E = 8 copies for each of two active ones, and trained from there
(`[model] init_from`); the control trains the dense model for as many steps on the same text. A token of the upcycled
model costs twice the feed-forward blocks of the control's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from loopscale.model.export import unroll
from loopscale.model.loading import load
from loopscale.model.retrofit import load_pretrained, retrofit
from loopscale.train.config import TrainConfig
from loopscale.train.trainer import Trainer, train


def settings(model: dict[str, Any], steps: int, rate: float) -> TrainConfig:
    """Return a run on the built-in corpus, byte by byte, 1,024 tokens a step."""
    return TrainConfig.from_dict({
        "model": model,
        "data": {"context": 128, **({} if "init_from" in model else {"tokenizer": "bytes"})},
        "optimizer": {"learning_rate": rate},
        "run": {"tokens": steps * 1024, "batch": 8},
    })  # fmt: skip


def main() -> None:
    """Print the loss at each step of the way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--more", type=int, default=150)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dense = options.out / "dense"
    summary = train(settings({"width": options.width, "recurrence": 1}, options.steps, 6e-3), dense)
    assert summary is not None
    print(f"dense, {options.steps} steps: {summary['validation_loss']:.4f}", flush=True)
    plain, upcycled = options.out / "plain", options.out / "upcycled"
    model, tokenizer = load(dense / "model", dtype=torch.float32)
    unroll(model, 1).save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    original, tokenizer = load_pretrained(plain)
    retrofit(original, 1, 1, 1, experts=8).save_pretrained(upcycled)
    tokenizer.save_pretrained(upcycled)
    for name, start in (("dense", dense), ("upcycled", upcycled)):
        run = settings({"init_from": str(start), "bias_update_rate": 0.01}, options.more, 3e-3)
        trainer = Trainer(run, options.out / f"{name}-on")
        before = trainer.validate()
        trainer.train()
        after = trainer.finish()
        busiest = f", busiest expert {after['expert_load']:.2f} times the mean" if "expert_load" in after else ""
        print(f"{name}, {options.more} steps more: {before:.4f} to {after['validation_loss']:.4f}{busiest}", flush=True)


if __name__ == "__main__":
    main()
