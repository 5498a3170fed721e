# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""The routing decisions of one forward: experts, loads, z-loss.

Shapes: L layers of a part, R passes, B batch, T tokens, E experts, K experts of a token, X calls of layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .moe import Routing
from .outputs import Trace


class Tally:
    """Collects the routings of one forward, in the order of the calls."""

    def __init__(self) -> None:
        self.prelude: list[Routing] = []
        self.loop: list[list[Routing]] = []
        self.coda: list[list[Routing]] = []

    def __bool__(self) -> bool:
        return bool(self.prelude or any(self.loop) or any(self.coda))

    def of_pass(self, pass_index: int) -> list[Routing]:
        """Return the list for the looped layers at a pass."""
        while len(self.loop) <= pass_index:
            self.loop.append([])
        return self.loop[pass_index]

    def of_read_out(self) -> list[Routing]:
        """Return a new list for the coda's layers."""
        self.coda.append([])
        return self.coda[-1]

    def trace(self, batch: int) -> Trace:
        """Return the chosen experts."""

        def ids_LBTK(routings: list[Routing]) -> Tensor:
            return _stack([routing.ids_TK.unflatten(0, (batch, -1)) for routing in routings])  # type: ignore[no-untyped-call]

        last = self.coda[-1] if self.coda else []
        return Trace(ids_LBTK(self.prelude), _stack([ids_LBTK(run) for run in self.loop]), ids_LBTK(last))

    def counts(self) -> Trace:
        """Return how many tokens chose each expert."""

        def counts_LE(routings: list[Routing]) -> Tensor:
            return _stack([routing.counts_E for routing in routings])

        read_outs = [counts_LE(run) for run in self.coda]
        coda_LE = _stack(read_outs).sum(0) if read_outs else _stack([])
        return Trace(counts_LE(self.prelude), _stack([counts_LE(run) for run in self.loop]), coda_LE)

    def dropped(self, kept: int) -> Tensor:
        """Return the share of rows beyond the first ``kept`` of each expert."""
        counts_XE = _stack([routing.counts_E for routing in self._all()])
        return (counts_XE - kept).clamp(min=0).sum() / counts_XE.sum()

    def logits(self) -> tuple[Tensor, ...]:
        """Return the routers' logits in the order of the calls."""
        return tuple(routing.logits_TE for routing in self._all())

    def z_loss(self) -> Tensor:
        """Return the z-loss, summed over layers and averaged over the passes of each: R does not scale it."""
        parts = ([self.prelude], self.loop, self.coda)
        sums = [[routing.z_loss for run in part for routing in run] for part in parts]
        return torch.stack([torch.stack(z).sum() / len(part) for z, part in zip(sums, parts, strict=True) if z]).sum()

    def _all(self) -> list[Routing]:
        return [routing for run in (self.prelude, *self.loop, *self.coda) for routing in run]


def _stack(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors) if tensors else torch.empty(0, dtype=torch.long)
