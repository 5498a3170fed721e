"""Balance the experts: move the bias of every router after each update, and report the load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loopscale.model.balancing import load_ratio, update_biases
from loopscale.train.callbacks.callback import Callback

if TYPE_CHECKING:
    from loopscale.model import LoopedMoEConfig
    from loopscale.train.config import TrainConfig
    from loopscale.train.step import Gradients


class Balancing(Callback):
    """The balancing of a mixture of experts without an auxiliary loss."""

    priority = 80

    @classmethod
    def for_run(cls, config: TrainConfig, model: LoopedMoEConfig) -> Balancing | None:
        return cls() if model.is_moe else None

    def after_update(self, gradients: Gradients) -> None:
        if gradients.counts is not None:
            update_biases(self.trainer.model, gradients.counts)

    def measure(self, row: dict[str, Any], gradients: Gradients) -> None:
        """Report the load of the busiest expert over the mean, in the layer where it is worst."""
        counts = gradients.counts
        if counts is not None:
            layers = [*counts.prelude, *counts.loop.sum(0), *counts.coda]
            row |= {
                "expert_load": max(load_ratio(counts_E) for counts_E in layers),
                "dropped": float(gradients.dropped),
            }
