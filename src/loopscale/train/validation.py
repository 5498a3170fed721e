"""The loss on text that training never saw."""

from __future__ import annotations

import torch

from loopscale.model import LoopedMoEForCausalLM
from loopscale.train.batches import Batches
from loopscale.train.process import Process


@torch.no_grad()
def validation_loss(
    model: LoopedMoEForCausalLM, batches: Batches, sequences: int, process: Process, recurrence: int | None = None
) -> float:
    """Return the mean loss over the first ``sequences`` of a split, at the model's recurrence or another."""
    was = model.training
    model.eval()  # type: ignore[no-untyped-call]
    steps = min(batches.steps_per_epoch, -(-sequences // batches.size))
    sums = torch.zeros(2, dtype=torch.float64, device=process.device)
    for step in range(steps):
        part = batches.batch(step, rank=process.rank, ranks=process.ranks)
        ids, labels = (torch.from_numpy(each).to(process.device) for each in (part.ids, part.labels))
        # Every process runs every step, targets or none: sharded models gather their weights together.
        loss = model(ids, labels=labels, use_cache=False, recurrence=recurrence).loss
        if part.targets:
            sums += torch.stack([loss.double() * part.targets, sums.new_tensor(float(part.targets))])
    model.train(was)
    total, targets = process.total(sums).tolist()
    return float(total / targets)
