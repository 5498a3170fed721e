"""Measure the loss on the validation split every ``[run] validate_every`` steps and at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from loopscale.train.callbacks.callback import Callback

if TYPE_CHECKING:
    from loopscale.model import LoopedMoEForCausalLM
    from loopscale.train.data.labels import AnyBatches
    from loopscale.train.parallel.process import Process
    from loopscale.train.step import Gradients


class Validation(Callback):
    """The validation loss in the rows of metrics."""

    in_every_run = True
    priority = 70

    def measure(self, row: dict[str, Any], gradients: Gradients) -> None:
        trainer = self.trainer
        if trainer.is_due(trainer.config.run.validate_every) or trainer.step == trainer.config.steps:
            row["validation_loss"] = trainer.validate()


@torch.no_grad()
def validation_loss(
    model: LoopedMoEForCausalLM,
    batches: AnyBatches,
    sequences: int,
    process: Process,
    recurrence: int | None = None,
) -> float:
    """Return the mean loss over the first ``sequences`` of a split, at the model's recurrence or another."""
    was_training = model.training
    model.eval()  # type: ignore[no-untyped-call]
    steps = min(batches.steps_per_epoch, -(-sequences // batches.size))
    sums = torch.zeros(2, dtype=torch.float64, device=process.device)
    for step in range(steps):
        part = batches.batch(step, rank=process.rank, ranks=process.ranks)
        ids, labels = (process.put(array) for array in (part.ids, part.labels))
        # Every process runs every step, targets or none: sharded models gather their weights together.
        loss = model(ids, labels=labels, use_cache=False, recurrence=recurrence, output_logits=False).loss
        if part.targets:
            sums += torch.stack([loss.double() * part.targets, sums.new_tensor(float(part.targets))])
    model.train(was_training)
    total, targets = process.total(sums).tolist()
    return float(total / targets)
