"""Train the models whose rounding is measured: three widths, with and without noise on the weights.

    python experiments/quantisation/train.py --out out/bits [--seeds 1]

All are the demo's recipe (four layers, two of eight experts, R drawn from 1 to 4 at each step) with 500,000 tokens.
"noise" adds, at every step, a uniform random number of the width of a 4-bit step to each weight that is rounded later;
the gradient is taken there and applied to the weights without it. Runs that were stopped resume.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from measure import BLOCK, projections

from loopscale.train.callbacks import Callback
from loopscale.train.config import TrainConfig
from loopscale.train.step import Gradients
from loopscale.train.trainer import train

WIDTHS = (32, 64, 96)
NOISE_BITS = 4


class WeightNoise(Callback):
    """Perturb the rounded weights during the gradients of a step; the update is applied to the weights themselves."""

    def start(self) -> None:
        self._kept: list[torch.Tensor] = []
        self._handle = self.trainer.model.register_forward_pre_hook(self._perturb)

    def stop(self) -> None:
        self._handle.remove()

    def _perturb(self, model: Any, args: Any) -> None:
        if not model.training or self._kept:
            return
        generator = torch.Generator().manual_seed(self.trainer.config.run.seed * 1_000_003 + self.trainer.step)
        for weight in projections(model, "weights"):
            self._kept.append(weight.data)
            blocks = weight.data.unflatten(-1, (-1, BLOCK))
            step = blocks.abs().amax(-1, keepdim=True) / (2 ** (NOISE_BITS - 1) - 1)
            noise = torch.rand(blocks.shape, generator=generator) - 0.5
            weight.data = (blocks + step * noise).flatten(-2)

    def skip_update(self, gradients: Gradients) -> bool:
        for weight, data in zip(projections(self.trainer.model, "weights"), self._kept, strict=True):
            weight.data = data
        self._kept = []
        return False


def settings(width: int, seed: int, tokens: float) -> TrainConfig:
    """Return the run of a width; the learning rate falls with it as in the recipe for the paper."""
    return TrainConfig.from_dict({
        "model": {"width": width, "layers": 4, "experts": 4, "recurrence": 4, "random_recurrence": "uniform"},
        "data": {"context": 128, "tokenizer": "train:2048"},
        "optimizer": {"learning_rate": 5e-3 * (64 / width) ** 0.85},
        "schedule": {"kind": "wsd"},
        "run": {"tokens": tokens, "batch": 16, "seed": seed},
    })  # fmt: skip


def main() -> None:
    """Train what is missing, the small models first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--widths", type=int, nargs="*", default=WIDTHS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", choices=("plain", "noise"), default=("plain", "noise"))
    parser.add_argument("--tokens", type=float, default=5e5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(options.seeds):
        for width in options.widths:
            for kind in options.kinds:
                callbacks = (WeightNoise(),) if kind == "noise" else ()
                folder = options.out / f"width-{width}-{kind}-{seed}"
                summary = train(settings(width, seed, options.tokens), folder, callbacks=callbacks)
                assert summary is not None
                print(f"{folder.name}: {summary['validation_loss']:.4f}", flush=True)


if __name__ == "__main__":
    main()
