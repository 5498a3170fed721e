"""Write checkpoints every ``[run] checkpoint_every`` steps, and where longer runs can branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopscale.train.callbacks.callback import Callback

if TYPE_CHECKING:
    from loopscale.model import LoopedMoEConfig
    from loopscale.train.config import TrainConfig


class Checkpointing(Callback):
    """When a run saves its state."""

    priority = -100  # last: the state of every other callback is in the checkpoint

    @classmethod
    def for_run(cls, config: TrainConfig, model: LoopedMoEConfig) -> Checkpointing:
        return cls()

    def after_step(self) -> None:
        trainer = self.trainer
        if trainer.is_due(trainer.config.run.checkpoint_every) or trainer.step == trainer.trunk_end:
            trainer.save()
