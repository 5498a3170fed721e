# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""One forward through the unrolled model: slots, passes, read-outs, early exit.

Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.generation.utils import GenerateDecoderOnlyOutput
from transformers.masking_utils import create_causal_mask
from transformers.utils import logging
from transformers.utils.generic import ModelOutput

from .blocks import Rows
from .config import InputError, LoopedMoEConfig
from .early_exit import Exit, ExitTracker
from .moe import Routing, capacity

logger = logging.get_logger(__name__)

if TYPE_CHECKING:
    from .modeling import LoopedMoEModel


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


class Tally:
    """Collects the routings of one forward, in the order of the calls."""

    def __init__(self) -> None:
        self.prelude: list[Routing] = []
        self.loop: list[list[Routing]] = []
        self.coda: list[list[Routing]] = []

    def __bool__(self) -> bool:
        return bool(self.prelude or any(self.loop) or any(self.coda))

    def of_pass(self, pass_index: int) -> list[Routing]:
        """Return the routings of the looped layers at a pass."""
        while len(self.loop) <= pass_index:
            self.loop.append([])
        return self.loop[pass_index]

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

    def logits(self) -> tuple[Tensor, ...]:
        """Return the routers' logits in the order of the calls."""
        return tuple(routing.logits_TE for run in (self.prelude, *self.loop, *self.coda) for routing in run)

    def z_loss(self) -> Tensor:
        """Return the z-loss, summed over layers and averaged over the passes of each: R does not scale it."""
        parts = ([self.prelude], self.loop, self.coda)
        sums = [[routing.z_loss for run in part for routing in run] for part in parts]
        return torch.stack([torch.stack(z).sum() / len(part) for z, part in zip(sums, parts, strict=True) if z]).sum()


def _stack(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors) if tensors else torch.empty(0, dtype=torch.long)


def resolve_recurrence(recurrence: object, exit_: object, config: LoopedMoEConfig, draw: bool = False) -> int:
    """Return the largest number of passes to run, from the arguments of a call.

    With ``draw`` and the config's ``random_recurrence`` it is random where the call does not give it.
    """
    if exit_ is not None and not isinstance(exit_, Exit):
        raise InputError(f"exit is {exit_!r}; it should be an Exit, like Exit('kl', 0.01)")
    if recurrence == "auto" and exit_ is None:
        raise InputError("recurrence 'auto' needs a criterion: exit=Exit('kl', 0.01), or another")
    if recurrence is None and draw and config.random_recurrence is not None:
        return draw_recurrence(config)
    if recurrence is None or recurrence == "auto":
        return config.recurrence
    if not isinstance(recurrence, int) or isinstance(recurrence, bool) or recurrence < 1:
        raise InputError(f"recurrence is {recurrence!r}; it should be a whole number, 1 or more, or 'auto'")
    if recurrence > 1 and not config.loop_layers:
        raise InputError(f"recurrence is {recurrence}, but the model has no loop block to repeat")
    return recurrence


def draw_recurrence(config: LoopedMoEConfig, generator: torch.Generator | None = None, mean: int | None = None) -> int:
    """Draw R for a training step. Processes that train together must draw alike: seed ``generator`` the same.

    ``mean`` stands for the config's recurrence: the most of "uniform", the mean of "poisson".
    """
    mean = config.recurrence if mean is None else mean
    if config.random_recurrence == "poisson":
        return 1 + int(torch.poisson(torch.tensor(float(mean - 1)), generator=generator))
    return int(torch.randint(1, mean + 1, (), generator=generator))


class Slots:
    """The cache slots of one forward: one for each (pass, layer), or a ring of fewer passes."""

    def __init__(self, config: LoopedMoEConfig, recurrence: int) -> None:
        # Read once: attribute access on a config is slow, and decoding needs slots at every layer.
        self._prelude, self._loop, self._coda = config.prelude_layers, config.loop_layers, config.coda_layers
        self.kept = config.kept(recurrence)
        self.count = config.slots(recurrence)
        self.rewrites = self.kept < recurrence
        self.window = config.kept_window

    def loop(self, pass_index: int, layer: int) -> int:
        """Return the slot of a looped layer at a pass."""
        return self._prelude + (pass_index % self.kept) * self._loop + layer

    def coda(self, layer: int) -> int:
        """Return the slot of a coda layer; every read-out overwrites it."""
        return self.count - self._coda + layer

    def check(self, cache: Cache) -> None:
        """Refuse a cache filled at another recurrence, or one without the operations that the slots need."""
        if (self.rewrites or self.window is not None) and not cache.is_croppable:
            raise InputError(
                "kept_passes and kept_window rewrite cache slots, which a static cache cannot: use a dynamic one"
            )
        if cache.is_compileable:  # a fixed number of slots, with lengths in tensors
            if len(cache.layers) < self.count:
                raise InputError(
                    f"the cache has {len(cache.layers)} slots, and this recurrence fills {self.count}: build it from a "
                    "config with that recurrence"
                )
            return
        past = int(cache.get_seq_length())
        if past and (not int(cache.get_seq_length(self.count - 1)) or int(cache.get_seq_length(self.count))):
            filled = sum(1 for slot in range(len(cache.layers)) if int(cache.get_seq_length(slot)))
            raise InputError(
                f"the cache holds {filled} slots, and this recurrence fills {self.count}: continue with the recurrence "
                "that filled it, or start from an empty cache"
            )

    def trim(self, cache: Cache) -> None:
        """Drop the keys and values of later passes for positions before the window."""
        if self.window is None:
            return
        for slot in range(self._prelude + self._loop, self.count - self._coda):
            layer: Any = cache.layers[slot]
            layer.keys, layer.values = (x[..., -self.window :, :].contiguous() for x in (layer.keys, layer.values))

    def carry(self, cache: Cache, last: int, recurrence: int, new: int) -> None:
        """Fill the slots of passes that did not run with the keys and values of the last one that ran."""
        for pass_index in range(last + 1, min(recurrence, self.kept)):
            for layer in range(self._loop):
                source: Any = cache.layers[self.loop(last, layer)]
                cache.update(source.keys[..., -new:, :], source.values[..., -new:, :], self.loop(pass_index, layer))

    def hold(self, cache: Cache, pass_index: int, left_BT: Tensor) -> None:
        """Give positions that exited before this pass the keys and values of the previous pass."""
        if self.kept == 1:
            return
        new = left_BT.shape[1]
        for layer in range(self._loop):
            now, before = (cache.layers[self.loop(index, layer)] for index in (pass_index, pass_index - 1))
            for name in ("keys", "values"):
                current, previous = (getattr(slot, name)[..., -new:, :] for slot in (now, before))
                current.copy_(torch.where(left_BT[:, None, :, None], previous, current))


class Wanted(NamedTuple):
    """The optional outputs that a call asked for."""

    routing: bool
    hidden_states: bool
    attentions: bool
    router_logits: bool


class ForwardPass:
    """The state of one forward call."""

    def __init__(
        self,
        model: LoopedMoEModel,
        recurrence: int,
        cache: Cache | None,
        wanted: Wanted,
        kwargs: dict[str, Any],
    ) -> None:
        self.model, self.config = model, model.config
        self.recurrence = recurrence
        self.slots = Slots(model.config, recurrence)
        # Read once: attribute access on a config is slow.
        self.scale = model.config.branch_scale(recurrence)
        self.by_pass, self.cycles = model.config.differs_by_pass, model.config.loop_order == "cycle"
        self.cache = cache
        self.kwargs = kwargs
        self.wanted = wanted
        self.tallies = model.config.is_moe and (wanted.routing or wanted.router_logits or model.training)
        self.tally = Tally()
        self.attentions = model.slot_attentions(self.slots.count)
        self.hidden_states: list[Tensor] = []
        self.attention_weights: list[Tensor] = []
        self.token_mask: Tensor | None = None
        self._calls = 0
        self.rows_b: Tensor | None = None
        """The rows of the batch that are computed now; None for all."""
        self.executed = 0
        """Passes computed so far, each counted once for each of its rows."""
        if cache is not None:
            self.slots.check(cache)

    def prepare(self, x_BTD: Tensor, attention_mask: Tensor | None, position_BT: Tensor | None) -> None:
        """Compute positions, their rotations and the causal mask, which all layers share."""
        if position_BT is None:
            past = 0 if self.cache is None else self.cache.get_seq_length()
            self._check_length(past, x_BTD.shape[1])
            position_BT = (torch.arange(x_BTD.shape[1], device=x_BTD.device) + past).unsqueeze(0)
        if self.tallies and isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
            self.token_mask = attention_mask[:, -x_BTD.shape[1] :].bool()
        self.angles = self.model.rotary_emb(x_BTD, position_BT)
        self.mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x_BTD,
            attention_mask=attention_mask,
            past_key_values=self.cache,
            position_ids=position_BT,
        )

    def _check_length(self, past: int | Tensor, new: int) -> None:
        """Warn about more tokens than positions; positions that the caller gives may belong to several sequences."""
        most = self.config.max_position_embeddings
        if isinstance(past, int) and past + new > most and not torch.compiler.is_compiling():
            logger.warning_once(
                f"the sequence has {past + new} tokens, more than max_position_embeddings ({most}): the model was not "
                "trained on such positions"
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
        input_BTD, left_BT, pass_index = state_BTD, None, 0
        states: list[Tensor] = []
        hiddens: list[Tensor] = []
        for pass_index in range(self.recurrence):
            self._leave_out_finished(left_BT, len(state_BTD))
            new_BTD = self._put(state_BTD, self.run_pass(self._own(state_BTD), self._own(input_BTD), pass_index))
            if left_BT is not None and self._own(left_BT).any():
                new_BTD = torch.where(left_BT.unsqueeze(-1), state_BTD, new_BTD)
                if self.cache is not None:
                    self.slots.hold(self.cache, pass_index, left_BT)
            state_BTD = new_BTD
            states.append(state_BTD)
            if every:
                read_BTD = self.read_out(self._own(state_BTD), again=pass_index > 0)
                hiddens.append(self._put(hiddens[-1], read_BTD) if hiddens else read_BTD)
            self._take_all_rows()
            if exit_ is not None:
                left_BT = exit_.update(state_BTD, hiddens[-1] if exit_.exit.needs_logits else None)
                if left_BT.all():
                    break
        if self.cache is not None:
            self.slots.carry(self.cache, pass_index, self.recurrence, state_BTD.shape[1])
            self.slots.trim(self.cache)
        last_BTD = hiddens[-1] if every else self.read_out(state_BTD, again=False)
        return last_BTD, states, hiddens

    def _leave_out_finished(self, left_BT: Tensor | None, batch: int) -> None:
        """From here on compute only the rows of the batch that have a position left in the loop.

        Outputs of every layer need all rows; so do masks that are no tensors.
        """
        whole = self.tallies or self.wanted.hidden_states or self.wanted.attentions
        if left_BT is None or whole or not isinstance(self.mask, Tensor | None) or not left_BT.all(1).any():
            self.executed += batch
            return
        self._of_all_rows = self.angles, self.mask
        self.rows_b = (~left_BT.all(1)).nonzero().squeeze(1)
        self.executed += len(self.rows_b)
        self.angles = self._own(self.angles[0]), self._own(self.angles[1])
        self.mask = None if self.mask is None else self._own(self.mask)

    def _take_all_rows(self) -> None:
        """From here on compute all rows of the batch."""
        if self.rows_b is not None:
            self.rows_b = None
            self.angles, self.mask = self._of_all_rows

    def _own(self, x: Tensor) -> Tensor:
        """Return the rows that are computed now; a tensor of one row serves all."""
        return x if self.rows_b is None or len(x) == 1 else x[self.rows_b]

    def _put(self, before_BTD: Tensor, now_BTD: Tensor) -> Tensor:
        """Return the whole batch, with the rows that were computed now."""
        return now_BTD if self.rows_b is None else before_BTD.index_copy(0, self.rows_b, now_BTD)

    def report(self, out: LoopedMoEOutput) -> None:
        """Put routing, hidden states and attention weights into the output."""
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

    def run_pass(self, state_BTD: Tensor, input_BTD: Tensor, pass_index: int) -> Tensor:
        """Run the loop block once, from the state and the loop's input: every switch of the recipe acts here.

        Passes before the last ``backprop_passes`` build no graph.
        """
        kept = self.config.backprop_passes
        cut = kept is not None and self.model.training and pass_index < self.recurrence - kept
        x_BTD = self.model.inject(state_BTD, input_BTD)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not cut):
            for layer, index in self._layers_of(pass_index):
                block, slot = self.model.loop[layer], self.slots.loop(index, layer)
                row = index if self.by_pass else 0  # a compiled block has one graph for each index
                routings, again = self.tally.of_pass(index), index >= self.slots.kept
                # A slot of the ring that has keys of this forward keeps them for rows that have left.
                source = self.slots.loop(index - 1, layer) if self.rows_b is not None and not again else None
                first = self.slots.loop(0, layer) if self.slots.window is not None and index else None
                x_BTD = self._block(block, slot, x_BTD, routings, row, self.scale, again, source, first)
        return x_BTD

    def _layers_of(self, pass_index: int) -> list[tuple[int, int]]:
        """Return the layers that a pass runs, each with how often it has run before."""
        layers = len(self.model.loop)
        if self.cycles:
            return [(layer, pass_index) for layer in range(layers)]
        first = pass_index * layers
        return [divmod(call, self.recurrence) for call in range(first, first + layers)]

    def read_out(self, x_BTD: Tensor, again: bool = False) -> Tensor:
        """Run coda and final norm; ``again`` overwrites the cache slots of an earlier read-out."""
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
        pass_index: int = 0,
        scale: float = 1.0,
        replace: bool = False,
        source: int | None = None,
        first: int | None = None,
    ) -> Tensor:
        rows = None if self.rows_b is None else Rows(self.rows_b, slot if source is None else source)
        if self.wanted.hidden_states:
            self.hidden_states.append(x_BTD)
        if self.model.stored_calls is not None:
            block.gradient_checkpointing = self._calls >= self.model.stored_calls  # type: ignore[assignment]
            self._calls += 1
        x_BTD, routing, weights = block(
            x_BTD,
            attention=self.attentions[slot],
            angles=self.angles,
            attention_mask=self.mask,
            pass_index=pass_index,
            scale=scale,
            tally=self.tallies,
            past_key_values=self.cache,
            replace=replace,
            token_mask=self.token_mask,
            rows=rows,
            first=first,
            **self.kwargs,
        )
        if self.wanted.attentions and weights is not None:
            self.attention_weights.append(weights)
        if routing is not None:
            routings.append(routing)
        return x_BTD
