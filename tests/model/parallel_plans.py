"""Run by two processes: a model sharded by one of its plans gives the logits of the whole model.

``parallel_plans.py FOLDER tensor`` or ``parallel_plans.py FOLDER experts``; rank, world size and port come from the
environment, as under torchrun.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from looped_models import tokens
from transformers.distributed import DistributedConfig

from loopscale.model import LoopedMoEForCausalLM


def main(folder: str, plan: str) -> None:
    """Compare both at two recurrences; print how many weights of the experts this process holds."""
    torch.set_num_threads(1)
    whole = LoopedMoEForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    sizes = {"tp_size": 2} if plan == "tensor" else {"tp_size": 2, "ep_size": 2, "tp_plan": {}}
    sharded = LoopedMoEForCausalLM.from_pretrained(
        folder, dtype=torch.float32, distributed_config=DistributedConfig(**sizes)
    ).eval()
    ids = tokens(2, 9)
    with torch.no_grad():
        for recurrence in (1, 3):
            torch.testing.assert_close(
                sharded(ids, recurrence=recurrence).logits,
                whole(ids, recurrence=recurrence).logits,
                atol=1e-4,
                rtol=1e-4,
            )
    weight = sharded.model.loop[0].mlp.experts.down_proj
    local = weight.to_local() if hasattr(weight, "to_local") else weight
    print(f"rank {dist.get_rank()}: {local.numel()} of {whole.model.loop[0].mlp.experts.down_proj.numel()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
