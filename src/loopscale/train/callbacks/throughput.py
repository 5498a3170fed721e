"""Measure tokens and FLOPs per second, and the share of what the device could do."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from loopscale.train.callbacks.callback import Callback
from loopscale.train.job import real_flops_per_token
from loopscale.train.timing import best_seconds

if TYPE_CHECKING:
    from loopscale.train.step import Gradients


class Throughput(Callback):
    """Tokens and FLOPs per second since the last row."""

    in_every_run = True
    priority = 100  # before others take time that is not the step's

    def __init__(self) -> None:
        self._step, self._since = 0, time.perf_counter()

    def start(self) -> None:
        trainer, process = self.trainer, self.trainer.process
        self._flops = real_flops_per_token(trainer.config, trainer.model_config) / process.ranks
        self._peak = peak_flops(process.device, process.dtype)
        self._step, self._since = trainer.step, time.perf_counter()

    def measure(self, row: dict[str, Any], gradients: Gradients) -> None:
        tokens = (self.trainer.step - self._step) * self.trainer.config.step_tokens
        rate = tokens / max(time.perf_counter() - self._since, 1e-9)
        self._step, self._since = self.trainer.step, time.perf_counter()
        flops = rate * self._flops
        row |= {"tokens_per_second": rate, "flops_per_second": flops, "peak_share": flops / self._peak}


@cache
def peak_flops(device: torch.device, dtype: torch.dtype, size: int = 768) -> float:
    """Return the FLOP/s that utilisation is a share of: the maker's for a known GPU in bf16, else as measured.

    The measurement is a large matrix product, the best of a few: less than the maker's number.
    """
    if device.type == "cuda" and dtype == torch.bfloat16:
        from loopscale.core.devices import device_called

        listed = device_called(torch.cuda.get_device_name(device))
        if listed is not None:
            return listed.flops
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    return 2 * size**3 / best_seconds(lambda: torch.mm(a, b), device)
