"""One forward through the unrolled model: slots, passes, read-outs, early exit.

Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask

from .blocks import rotary
from .config import InputError
from .exits import ExitTracker
from .looping import Slots
from .moe import Routing, capacity
from .outputs import LoopedMoEOutput, Tally

if TYPE_CHECKING:
    from .modeling import LoopedMoEModel


class Run:
    """The state of one forward; it is made by the model's ``forward`` and gone with it."""

    def __init__(
        self,
        model: LoopedMoEModel,
        recurrence: int,
        cache: Cache | None,
        tally: bool,
        capture: bool,
        kwargs: dict[str, Any],
    ) -> None:
        self.model, self.config = model, model.config
        self.recurrence = recurrence
        self.slots = Slots(model.config, recurrence)
        self.cache = cache
        self.kwargs = kwargs
        self.wants_routing = tally
        self.tallies = model.config.is_moe and (tally or model.training)
        self.tally = Tally()
        self.attentions = model.slot_attentions(self.slots.count)
        self.captured: list[Tensor] | None = [] if capture else None
        if cache is not None:
            self.slots.check(cache)

    def place_tokens(self, x_BTD: Tensor, attention_mask: Tensor | None, position_BT: Tensor | None) -> None:
        """Work out positions, their rotations and the causal mask, which all layers share."""
        past = 0 if self.cache is None else int(self.cache.get_seq_length())
        length, most = past + x_BTD.shape[1], self.config.max_position_embeddings
        serving = str(self.config._attn_implementation).startswith("vllm")  # there T counts many sequences
        if length > most and not serving:
            raise InputError(f"the sequence has {length} tokens, more than max_position_embeddings ({most})")
        if position_BT is None:
            position_BT = torch.arange(past, length, device=x_BTD.device).unsqueeze(0)
        self.angles = rotary(position_BT, self.config, x_BTD.dtype)
        self.mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x_BTD,
            attention_mask=attention_mask,
            past_key_values=self.cache,
            position_ids=position_BT,
        )

    def prelude(self, x_BTD: Tensor) -> Tensor:
        """Run the layers before the loop."""
        for slot, block in enumerate(self.model.prelude):
            x_BTD = self._block(block, slot, x_BTD, self.tally.prelude)
        return x_BTD

    def loop(
        self, state_BTD: Tensor, exit_: ExitTracker | None, every: bool
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Run the passes; return the final read-out, and the states and read-outs of each pass.

        ``every`` reads the model out after each pass, not after the last only.
        """
        input_BTD, left_BT, place = state_BTD, None, 0
        states: list[Tensor] = []
        hiddens: list[Tensor] = []
        for place in range(self.recurrence):
            new_BTD = self._pass(self.model.inject(state_BTD, input_BTD), place)
            if left_BT is not None and left_BT.any():
                new_BTD = torch.where(left_BT.unsqueeze(-1), state_BTD, new_BTD)
                if self.cache is not None:
                    self.slots.hold(self.cache, place, left_BT)
            state_BTD = new_BTD
            states.append(state_BTD)
            if every:
                hiddens.append(self._read(state_BTD, again=place > 0))
            if exit_ is not None:
                left_BT = exit_.update(state_BTD, hiddens[-1] if exit_.exit.needs_logits else None)
                if left_BT.all():
                    break
        if self.cache is not None:
            self.slots.carry(self.cache, place, self.recurrence, state_BTD.shape[1])
        last_BTD = hiddens[-1] if every else self._read(state_BTD, again=False)
        return last_BTD, states, hiddens

    def report(self, out: LoopedMoEOutput) -> None:
        """Put routing and captured states into the output."""
        if self.captured is not None:
            assert out.last_hidden_state is not None
            out.hidden_states = (*self.captured, out.last_hidden_state)
        if not self.tally:
            return
        if self.wants_routing:
            assert out.last_hidden_state is not None
            out.routing = self.tally.trace(out.last_hidden_state.shape[0])
        out.expert_counts = self.tally.counts()
        out.z_loss = self.tally.z_loss()
        if self.model.training and self.config.dispatch == "drop-and-pad":
            assert out.last_hidden_state is not None
            tokens = out.last_hidden_state.shape[:2].numel()
            out.dropped = self.tally.dropped(capacity(tokens, self.config))

    def _pass(self, x_BTD: Tensor, place: int) -> Tensor:
        """Run the loop block once; passes too early for truncated backpropagation leave no graph."""
        kept = self.config.backprop_passes
        cut = kept is not None and self.model.training and place < self.recurrence - kept
        row = place if self.config.balance == "pass" else 0
        routings: list[Routing] = []
        self.tally.loop.append(routings)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not cut):
            for layer, block in enumerate(self.model.loop):
                slot = self.slots.loop(place, layer)
                x_BTD = self._block(block, slot, x_BTD, routings, row, replace=place >= self.slots.kept)
        return x_BTD

    def _read(self, x_BTD: Tensor, again: bool) -> Tensor:
        """Run coda and final norm; ``again`` replaces what an earlier read-out left in the cache."""
        if again and self.cache is not None and not self.cache.is_croppable:
            raise InputError("reading every pass rewrites the coda's cache slots, which a static cache cannot")
        routings: list[Routing] = []
        self.tally.coda.append(routings)
        for layer, block in enumerate(self.model.coda):
            x_BTD = self._block(block, self.slots.coda(layer), x_BTD, routings, replace=again)
        hidden_BTD: Tensor = self.model.norm(x_BTD)
        return hidden_BTD

    def _block(
        self,
        block: torch.nn.Module,
        slot: int,
        x_BTD: Tensor,
        routings: list[Routing],
        row: int = 0,
        replace: bool = False,
    ) -> Tensor:
        if self.captured is not None:
            self.captured.append(x_BTD)
        x_BTD, routing = block(
            x_BTD,
            attention=self.attentions[slot],
            angles=self.angles,
            attention_mask=self.mask,
            place=row,
            tally=self.tallies,
            past_key_values=self.cache,
            replace=replace,
            **self.kwargs,
        )
        if routing is not None:
            routings.append(routing)
        return x_BTD
