"""Write checkpoints every ``[run] checkpoint_every`` steps, and where longer runs can branch."""

from __future__ import annotations

from loopscale.train.callbacks.callback import Callback


class Checkpointing(Callback):
    """When a run saves its state."""

    in_every_run = True
    priority = -100  # last: the state of every other callback is in the checkpoint

    def after_step(self) -> None:
        trainer = self.trainer
        if trainer.is_due(trainer.config.run.checkpoint_every) or trainer.step == trainer.trunk_end:
            trainer.save()
