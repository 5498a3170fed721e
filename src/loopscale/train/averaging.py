"""An exponential moving average of the weights, which validation and the finished model use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from loopscale.train.parallel.shards import local_part

WARM_UP = 10
"""Steps after which the average forgets the initial weights about as fast as its decay says."""


class Average:
    """The averages of a model's weights, each sharded as its weight is."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._weights = dict(model.named_parameters())
        # In fp32 also where the weights are not: what a step adds is smaller than the last digit of bf16.
        self.tensors = {name: weight.detach().to(torch.float32, copy=True) for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights after a step; early steps count for more, as the initial weights mean nothing."""
        decay = min(self.decay, (1 + step) / (WARM_UP + step))
        averages, weights = self._locals()
        torch._foreach_lerp_(averages, [weight.float() for weight in weights], 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averages within the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for average, weight in zip(*self._locals(), strict=True):
            before = average.clone()
            average.copy_(weight)
            weight.copy_(before)

    def _locals(self) -> tuple[list[Tensor], list[Tensor]]:
        averages = [local_part(self.tensors[name]) for name in self._weights]
        return averages, [local_part(weight) for weight in self._weights.values()]
