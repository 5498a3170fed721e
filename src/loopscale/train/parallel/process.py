"""The process that trains: alone here; ``parallel`` gives the same to many that work together."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from loopscale.model import LoopedMoEForCausalLM
from loopscale.train.config import TrainConfig


@dataclass(frozen=True)
class Process:
    """One process that trains by itself."""

    device: torch.device
    rank: int = 0
    ranks: int = 1
    dtype: torch.dtype = torch.float32
    """What the weights are multiplied in."""

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


def this_process(config: TrainConfig) -> Process:
    """Return the process that runs now: one of many if torchrun started it."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = precision(config.run.precision, device)
    if not launched() and dtype == torch.float32 and config.parallel.experts == 1:
        return Process(device)
    from loopscale.train.parallel.group import join

    return join(config, device, dtype)


def launched() -> bool:
    """Tell whether a launcher, such as torchrun, started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launched_rank() -> int:
    """Return this process's place among those that a launcher started; 0 when it was started alone."""
    return int(os.environ["RANK"]) if launched() else 0


def precision(wanted: str, device: torch.device) -> torch.dtype:
    """Return what ``[run] precision`` means on a device."""
    if wanted == "auto":
        able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if able else torch.float32
    return torch.bfloat16 if wanted == "bf16" else torch.float32
