# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""What the model returns.

Shapes: L layers of a part, R passes, B batch, T tokens, P positions whose logits are wanted, E experts, K experts of a
token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from transformers.cache_utils import Cache
from transformers.generation.utils import GenerateDecoderOnlyOutput
from transformers.utils.generic import ModelOutput


class Trace(NamedTuple):
    """The experts that each token chose, or how many tokens chose each expert."""

    prelude: Tensor
    """Expert ids (L, B, T, K), or counts (L, E)."""
    loop: Tensor
    """Expert ids (R, L, B, T, K), or counts (R, L, E)."""
    coda: Tensor
    """Expert ids (L, B, T, K) of the last read-out, or counts (L, E) over all of them."""


class Wanted(NamedTuple):
    """The optional outputs that a call asked for."""

    routing: bool = False
    hidden_states: bool = False
    attentions: bool = False
    router_logits: bool = False


@dataclass
class LoopedMoEOutput(ModelOutput):
    """Hidden states after coda and final norm, and the optional outputs."""

    last_hidden_state: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    """The input of every unrolled layer, and the last hidden state."""
    attentions: tuple[Tensor, ...] | None = None
    """The attention weights of every unrolled layer; "eager" attention has them."""
    router_logits: tuple[Tensor, ...] | None = None
    """The router's logits (B T, E) of every call of a layer."""
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
    executed: Tensor | None = None
    """With early exit: passes of sequences that this call computed, a whole number."""


@dataclass
class LoopedMoECausalOutput(ModelOutput):
    """Logits, loss, and the optional outputs."""

    loss: Tensor | None = None
    """What a trainer minimises: the cross-entropy and, in training, the weighted z-loss."""
    logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    router_logits: tuple[Tensor, ...] | None = None
    pass_logits: tuple[Tensor, ...] | None = None
    """The logits of each pass; the last are ``logits``."""
    pass_states: tuple[Tensor, ...] | None = None
    pass_hidden_states: tuple[Tensor, ...] | None = None
    routing: Trace | None = None
    expert_counts: Trace | None = None
    """In training: for the balancing bias, and to be summed over processes first."""
    z_loss: Tensor | None = None
    exit_loss: Tensor | None = None
    """In training with ``exit_gate``: minus the weighted entropy of the exit distribution, a mean over targets."""
    dropped: Tensor | None = None
    passes: Tensor | None = None
    executed: Tensor | None = None
    cross_entropy: Tensor | None = None
    """The next-token loss, without the z-loss."""


OF_PASSES = ("pass_states", "pass_hidden_states")
"""Fields that a call gets only if it asks for them; the loss may need them too."""
PASSED_ON = tuple(
    name
    for name in LoopedMoEOutput.__dataclass_fields__
    if name in LoopedMoECausalOutput.__dataclass_fields__ and name not in OF_PASSES
)
"""Fields that the model with a head passes on."""


@dataclass
class LoopedGenerateOutput(GenerateDecoderOnlyOutput):
    """What ``generate(..., return_dict_in_generate=True)`` returns with early exit or self-speculation."""

    passes: Tensor | None = None
    """With early exit: passes used for each generated token (B, tokens)."""
    executed: Tensor | None = None
    """With early exit: passes of sequences that each forward computed (tokens,)."""
    accepted: Tensor | None = None
    """With ``draft_recurrence``: drafted tokens that each verification confirmed."""
    drafted: Tensor | None = None
    """With ``draft_recurrence``: drafted tokens that each verification read."""
