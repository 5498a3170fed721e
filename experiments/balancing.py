"""How fast the balancing bias should move in short runs: the load of the busiest expert, and the loss.

    python experiments/balancing.py --out out/balancing

Each length is trained at several rates and seeds on the built-in corpus, byte by byte: two of sixteen experts, R = 2,
1,024 tokens a step. One line for each run goes to OUT/runs.jsonl. A run that is there already is not trained again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from loopscale.train.config import TrainConfig
from loopscale.train.trainer import train

STEPS = (60, 250, 600)
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
BATCH, CONTEXT = 8, 128


def main() -> None:
    """Train what is missing, the short runs first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, nargs="*", default=STEPS)
    parser.add_argument("--rates", type=float, nargs="*", default=RATES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for steps in options.steps:
        for seed in range(options.seeds):
            for rate in options.rates:
                config = TrainConfig.from_dict({
                    "model": {"width": options.width, "experts": 8, "recurrence": 2, "bias_update_rate": rate},
                    "data": {"context": CONTEXT},
                    "optimizer": {"learning_rate": 6e-3},
                    "run": {"tokens": steps * BATCH * CONTEXT, "batch": BATCH, "seed": seed},
                })  # fmt: skip
                summary = train(config, options.out / f"{options.width}-{steps}-{rate:g}-{seed}")
                assert summary is not None
                row = {"width": options.width, "steps": steps, "rate": rate, "seed": seed,
                       "loss": summary["validation_loss"], "load": summary["expert_load"]}  # fmt: skip
                with (options.out / "runs.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)


if __name__ == "__main__":
    main()
