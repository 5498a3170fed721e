"""Balance the experts: move the bias of every router after each update, and report the load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from loopscale.model.balancing import load_ratio, update_biases
from loopscale.train.callbacks.callback import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from loopscale.model import LoopedMoEConfig
    from loopscale.model.outputs import Trace
    from loopscale.train.config import TrainConfig
    from loopscale.train.step import Gradients


RECENT = 20
"""Steps that the load in the summary is taken over. It does not follow the length of the run: a point on the trunk of a
sweep has the summary of a separate run."""


class Balancing(Callback):
    """The balancing of a mixture of experts without an auxiliary loss."""

    priority = 80

    def __init__(self) -> None:
        self._recent_LE: Tensor | None = None
        """Tokens of each expert over about the last ``RECENT`` steps."""

    @classmethod
    def for_run(cls, config: TrainConfig, model: LoopedMoEConfig) -> Balancing | None:
        return cls() if model.is_moe else None

    def after_update(self, gradients: Gradients) -> None:
        if gradients.counts is not None:
            update_biases(self.trainer.model, gradients.counts)
            now_LE = torch.stack(_layers(gradients.counts)).double()
            before_LE = torch.zeros_like(now_LE) if self._recent_LE is None else self._recent_LE.to(now_LE)
            self._recent_LE = before_LE * (1 - 1 / RECENT) + now_LE

    def measure(self, row: dict[str, Any], gradients: Gradients) -> None:
        """Report the load of the busiest expert over the mean, in the layer where it is worst."""
        counts = gradients.counts
        if counts is not None:
            row |= {
                "expert_load": max(load_ratio(counts_E) for counts_E in _layers(counts)),
                "dropped": float(gradients.dropped),
            }

    def summarise(self, summary: dict[str, Any]) -> None:
        """Add the load over the last steps: a short run may end before its biases have balanced it."""
        if self._recent_LE is not None:
            summary["expert_load"] = round(max(load_ratio(counts_E) for counts_E in self._recent_LE), 3)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._recent_LE is None else {"recent": self._recent_LE.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recent_LE = torch.tensor(state["recent"], dtype=torch.float64) if "recent" in state else None


def _layers(counts: Trace) -> list[Tensor]:
    """Return the loads of each layer (E,), over all passes."""
    return [*counts.prelude, *counts.loop.sum(0), *counts.coda]
