# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""One call of the model: what all its layers share, and what they report. The loop itself is in ``model.py``.

Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.utils import logging

from .blocks import SlotAttention
from .cache import Slots, SlotUse
from .config import LoopedMoEConfig
from .errors import InputError
from .exit import Exit
from .moe import Routing, capacity
from .outputs import LoopedMoEOutput, Wanted
from .rules import MOST_LAYERS, is_whole
from .tally import Tally

if TYPE_CHECKING:
    from .model import LoopedMoEModel

logger = logging.get_logger(__name__)


def resolve_recurrence(recurrence: object, exit_: object, config: LoopedMoEConfig, draw: bool = False) -> int:
    """Return the largest number of passes to run, from the arguments of a call.

    With ``draw`` and the config's ``random_recurrence`` it is random where the call does not give it.
    """
    if exit_ is not None and not isinstance(exit_, Exit):
        raise InputError(f"exit is {exit_!r}; it should be an Exit, like Exit('kl', 0.01)")
    if recurrence == "auto" and exit_ is None:
        raise InputError("recurrence 'auto' needs a criterion: give exit=Exit('kl', 0.01), or another")
    if recurrence is None and draw and config.random_recurrence is not None:
        return draw_recurrence(config)
    if recurrence is None or recurrence == "auto":
        return config.recurrence
    passes = recurrence
    if not isinstance(passes, int):  # whole numbers of numpy and torch too
        try:
            passes = index(passes)  # type: ignore[arg-type]
        except TypeError:
            passes = None
    if not is_whole(passes) or not 1 <= passes <= MOST_LAYERS:
        raise InputError(
            f"recurrence is {recurrence!r}; it should be a whole number from 1 to {MOST_LAYERS}, or 'auto'"
        )
    if passes > 1 and not config.loop_layers:
        raise InputError(f"recurrence is {passes}, but the model has no loop block to repeat; use 1")
    return passes


def draw_recurrence(config: LoopedMoEConfig, generator: torch.Generator | None = None, mean: int | None = None) -> int:
    """Draw R for a training step. Processes that train together must draw alike: seed ``generator`` the same.

    ``mean`` is the config's recurrence: the most of "uniform", the mean of "poisson".
    """
    mean = config.recurrence if mean is None else mean
    if config.random_recurrence == "poisson":
        return 1 + int(torch.poisson(torch.tensor(float(mean - 1)), generator=generator))
    return int(torch.randint(1, mean + 1, (), generator=generator))


class ForwardCall:
    """What the layers of one call share (positions, mask, cache) and report (routing, states, attention weights)."""

    def __init__(
        self,
        model: LoopedMoEModel,
        recurrence: int,
        cache: Cache | None,
        wanted: Wanted = Wanted(),  # noqa: B008 - a tuple
        options: dict[str, Any] | None = None,
    ) -> None:
        config = model.config
        self.model, self.config, self.recurrence, self.cache = model, config, recurrence, cache
        self.wanted, self.options = wanted, options or {}
        # Read once: attribute access on a config is slow.
        self.scale, self.by_pass = config.branch_scale(recurrence), config.differs_by_pass
        self.slots = Slots(config, recurrence)
        if cache is not None:
            self.slots.check(cache)
        own = list(model.attentions)[: self.slots.count]
        later = (SlotAttention(config, slot) for slot in range(len(own), self.slots.count))
        self.attentions = [*own, *later]
        """Of each slot; those beyond the config's recurrence are made for this call."""
        self.tally = Tally()
        self.tallies = config.is_moe and (wanted.routing or wanted.router_logits or model.training)
        self.token_mask: Tensor | None = None
        self.hidden_states: list[Tensor] = []
        self.attention_weights: list[Tensor] = []
        self._block_calls = 0

    def prepare(self, x_BTD: Tensor, attention_mask: Tensor | None, position_BT: Tensor | None) -> None:
        """Compute positions, their rotations and the causal mask."""
        length, own_BT = x_BTD.shape[1], position_BT
        if own_BT is None:
            past = 0 if self.cache is None else self.cache.get_seq_length()
            self._warn_beyond_positions(past, length)
            own_BT = (torch.arange(length, device=x_BTD.device) + past).unsqueeze(0)
        if self.tallies and isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
            self.token_mask = attention_mask[:, -length:].bool()
        self.angles: tuple[Tensor, Tensor] = self.model.rotary_emb(x_BTD, own_BT)
        # Positions of a call may be those of packed sequences, which is looked up: the host would wait for a device.
        self.mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x_BTD,
            attention_mask=attention_mask,
            past_key_values=self.cache,
            position_ids=position_BT,
        )

    def _warn_beyond_positions(self, past: int | Tensor, new: int) -> None:
        """Warn about more tokens than positions; positions that the caller gives may belong to several sequences."""
        most = self.config.max_position_embeddings
        if isinstance(past, int) and past + new > most and not torch.compiler.is_compiling():
            logger.warning_once(
                f"the sequence has {past + new} tokens, more than max_position_embeddings ({most}): the model was not "
                "trained on such positions"
            )

    def has_gradients(self, pass_index: int) -> bool:
        """Whether a pass builds a graph; in training those before the last ``backprop_passes`` do not."""
        kept = self.config.backprop_passes
        cut = kept is not None and self.model.training and pass_index < self.recurrence - kept
        return torch.is_grad_enabled() and not cut

    def looped(self, block: nn.Module, x_BTD: Tensor, layer: int, pass_index: int) -> Tensor:
        """Run a layer of the loop block at a pass."""
        return self.run(
            block,
            x_BTD,
            slot=self.slots.loop(pass_index, layer),
            use=self.slots.loop_use(pass_index, layer),
            routings=self.tally.of_pass(pass_index),
            # A compiled block has one graph for each index, so the index is constant where passes do not differ.
            pass_index=pass_index if self.by_pass else 0,
            scale=self.scale,
        )

    def run(
        self,
        block: nn.Module,
        x_BTD: Tensor,
        *,
        slot: int,
        routings: list[Routing],
        use: SlotUse | None = None,
        pass_index: int = 0,
        scale: float = 1.0,
    ) -> Tensor:
        """Run a block with the attention of a slot, and take what it reports."""
        if self.wanted.hidden_states:
            self.hidden_states.append(x_BTD)
        if self.model.stored_calls is not None:
            block.gradient_checkpointing = self._block_calls >= self.model.stored_calls  # type: ignore[assignment]
            self._block_calls += 1
        x_BTD, routing, weights = block(
            x_BTD,
            attention=self.attentions[slot],
            angles=self.angles,
            attention_mask=self.mask,
            pass_index=pass_index,
            scale=scale,
            tally=self.tallies,
            token_mask=self.token_mask,
            past_key_values=self.cache,
            use=use,
            **self.options,
        )
        if self.wanted.attentions and weights is not None:
            self.attention_weights.append(weights)
        if routing is not None:
            routings.append(routing)
        return x_BTD

    def report(self, out: LoopedMoEOutput) -> None:
        """Add routing, hidden states and attention weights to the output."""
        assert out.last_hidden_state is not None
        if self.wanted.hidden_states:
            out.hidden_states = (*self.hidden_states, out.last_hidden_state)
        if self.wanted.attentions:
            out.attentions = tuple(self.attention_weights)
        if not self.tally:
            return
        if self.wanted.router_logits:
            out.router_logits = self.tally.logits()
        if self.wanted.routing:
            out.routing = self.tally.trace(out.last_hidden_state.shape[0])
        out.expert_counts = self.tally.counts()
        out.z_loss = self.tally.z_loss()
        if self.model.training and self.config.dispatch == "drop-and-pad":
            tokens = out.last_hidden_state.shape[:2].numel()
            out.dropped = self.tally.dropped(capacity(tokens, self.config))
