"""Run by two processes: a model sharded by one of its plans gives the logits of the whole model.

``parallel_plans.py FOLDER``; rank, world size and port come from the environment, as under torchrun.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from looped_models import tokens
from transformers.distributed import DistributedConfig

from loopscale.model import LoopedMoEForCausalLM

PLANS: dict[str, dict[str, Any]] = {
    "tensor": {"tp_plan": "auto"},
    "experts": {"tp_size": 2, "ep_size": 2, "tp_plan": {}},
    "both": {"tp_size": 2, "ep_size": 2},
}


def local(weight: torch.Tensor) -> torch.Tensor:
    """Return what this process holds of a weight."""
    return weight.to_local() if hasattr(weight, "to_local") else weight


def main(folder: str) -> None:
    """Compare logits and the loss at two recurrences; print which weights each plan shared out."""
    torch.set_num_threads(1)
    whole = LoopedMoEForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = tokens(2, 9)
    for plan, options in PLANS.items():
        sharded = LoopedMoEForCausalLM.from_pretrained(
            folder, dtype=torch.float32, distributed_config=DistributedConfig(**options)
        ).eval()
        with torch.no_grad():
            for recurrence in (1, 3):
                ours, theirs = (made(ids, recurrence=recurrence, labels=ids) for made in (sharded, whole))
                torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(ours.loss, theirs.loss, atol=1e-4, rtol=1e-4)
        names = ("lm_head.weight", "model.loop.0.mlp.experts.down_proj")
        halves = [2 * local(sharded.get_parameter(name)).numel() == whole.get_parameter(name).numel() for name in names]
        print(f"rank {dist.get_rank()}, {plan}: head {halves[0]}, experts {halves[1]}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
