"""The process that trains: alone here; ``parallel`` gives the same to many that work together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopscale.model import LoopedMoEForCausalLM


@dataclass(frozen=True)
class Process:
    """One process that trains by itself."""

    device: torch.device
    rank: int = 0
    ranks: int = 1

    def prepare(self, model: LoopedMoEForCausalLM) -> LoopedMoEForCausalLM:
        """Return the model as this process trains it."""
        return model.to(self.device)  # type: ignore[arg-type, no-any-return]

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over all processes."""
        return values

    def clip(self, model: LoopedMoEForCausalLM, most: float) -> Tensor:
        """Scale the gradients down to the norm ``most`` and return the norm that they had."""
        return torch.nn.utils.clip_grad_norm_(model.parameters(), most if most else float("inf"))

    def whole(self, model: LoopedMoEForCausalLM) -> dict[str, Tensor]:
        """Return the whole model's tensors, on the first process."""
        return {name: tensor.detach() for name, tensor in model.state_dict().items()}

    def close(self) -> None:
        """End what was shared with other processes."""


def this_process() -> Process:
    """Return the process that runs now: one of many if torchrun started it."""
    return Process(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
