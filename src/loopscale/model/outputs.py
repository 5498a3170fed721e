"""What a forward returns.

Shapes: B batch, T tokens, P positions whose logits were wanted, R passes, L layers of a part, E experts, K experts of
a token, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.generation.utils import GenerateDecoderOnlyOutput
from transformers.utils.generic import ModelOutput

from .moe import Routing


class Trace(NamedTuple):
    """The experts that each token chose, or how many tokens chose each expert."""

    prelude: Tensor
    """Expert ids (L, B, T, K), or counts (L, E)."""
    loop: Tensor
    """Expert ids (R, L, B, T, K), or counts (R, L, E)."""
    coda: Tensor
    """Expert ids (L, B, T, K) of the last read-out, or counts (L, E) over all of them."""


@dataclass
class LoopedMoEOutput(ModelOutput):
    """Hidden states after coda and final norm, and what the call asked for besides."""

    last_hidden_state: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    """The input of every unrolled layer, and the last hidden state."""
    pass_states: tuple[Tensor, ...] | None = None
    """The loop's state after each pass."""
    pass_hidden_states: tuple[Tensor, ...] | None = None
    """The read-out of each pass: its state through coda and final norm."""
    routing: Trace | None = None
    expert_counts: Trace | None = None
    z_loss: Tensor | None = None
    """Summed over layers, averaged over the passes of each."""
    dropped: Tensor | None = None
    """In training with drop-and-pad: the share of routed rows that no expert took."""
    passes: Tensor | None = None
    """With early exit: passes used (B, P)."""


@dataclass
class LoopedMoECausalOutput(ModelOutput):
    """Logits and loss, and what the call asked for besides."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    pass_logits: tuple[Tensor, ...] | None = None
    """The logits of each pass; the last are ``logits``."""
    pass_states: tuple[Tensor, ...] | None = None
    pass_hidden_states: tuple[Tensor, ...] | None = None
    routing: Trace | None = None
    expert_counts: Trace | None = None
    """In training: for the balancing bias, and to be summed over processes first."""
    z_loss: Tensor | None = None
    dropped: Tensor | None = None
    passes: Tensor | None = None


@dataclass
class LoopedGenerateOutput(GenerateDecoderOnlyOutput):
    """What ``generate(..., return_dict_in_generate=True)`` returns with early exit."""

    passes: Tensor | None = None
    """Passes used for each generated token (B, tokens)."""


class Tally:
    """Collects the routings of one forward, in the order of the calls."""

    def __init__(self) -> None:
        self.prelude: list[Routing] = []
        self.loop: list[list[Routing]] = []
        self.coda: list[list[Routing]] = []

    def __bool__(self) -> bool:
        return bool(self.prelude or any(self.loop) or any(self.coda))

    def trace(self, batch: int) -> Trace:
        """Return the chosen experts."""
        one = [routing.ids_TK.unflatten(0, (batch, -1)) for routing in self.prelude]  # type: ignore[no-untyped-call]
        many = [_stack([routing.ids_TK.unflatten(0, (batch, -1)) for routing in run]) for run in self.loop]  # type: ignore[no-untyped-call]
        last = [routing.ids_TK.unflatten(0, (batch, -1)) for routing in self.coda[-1]] if self.coda else []  # type: ignore[no-untyped-call]
        return Trace(_stack(one), _stack(many), _stack(last))

    def counts(self) -> Trace:
        """Return how many tokens chose each expert."""
        one = [routing.counts_E for routing in self.prelude]
        many = [_stack([routing.counts_E for routing in run]) for run in self.loop]
        read = [_stack([routing.counts_E for routing in run]) for run in self.coda]
        return Trace(_stack(one), _stack(many), _stack(read).sum(0) if read else _stack([]))

    def dropped(self, kept: int) -> Tensor:
        """Return the share of rows beyond the first ``kept`` of each expert."""
        runs = [self.prelude, *self.loop, *self.coda]
        counts_XE = _stack([routing.counts_E for run in runs for routing in run])
        return (counts_XE - kept).clamp(min=0).sum() / counts_XE.sum()

    def z_loss(self) -> Tensor:
        """Return the z-loss, summed over layers and averaged over the passes of each: R does not scale it."""
        parts = ([self.prelude], self.loop, self.coda)
        sums = [[routing.z_loss for run in part for routing in run] for part in parts]
        return torch.stack([torch.stack(z).sum() / len(part) for z, part in zip(sums, parts, strict=True) if z]).sum()


def _stack(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors) if tensors else torch.empty(0, dtype=torch.long)
