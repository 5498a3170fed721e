# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""The looped MoE: embeddings, prelude, the loop block R times, coda, head. Generate, lm-eval and vLLM use this file.

Shapes: B batch, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_layers import GenericForSequenceClassification

from .blocks import Block, RMSNorm, RotaryEmbedding, SlotAttention
from .cache import SlotUse
from .config import LoopedMoEConfig
from .errors import InputError
from .exit import Exit, ExitGate, ExitTracker, RecordedExit
from .exit_loop import ExitCall
from .forward import ForwardCall, resolve_recurrence
from .generate import LoopedGenerationMixin
from .injection import build_injection, inject
from .losses import loss_terms
from .outputs import OF_PASSES, PASSED_ON, LoopedMoECausalOutput, LoopedMoEOutput, Wanted
from .pretrained import LoopedMoEPreTrainedModel
from .rules import check


class LoopedMoEModel(LoopedMoEPreTrainedModel):  # type: ignore[no-untyped-call]
    """The model without its output head."""

    def __init__(self, config: LoopedMoEConfig) -> None:
        super().__init__(config)
        check(config)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.embed_tokens = nn.Embedding(config.vocab_size, width, config.pad_token_id)
        self.prelude = nn.ModuleList(Block(config) for _ in range(config.prelude_layers))
        self.loop = nn.ModuleList(Block(config, looped=True) for _ in range(config.loop_layers))
        self.coda = nn.ModuleList(Block(config) for _ in range(config.coda_layers))
        self.injection = build_injection(config)
        self.exit_gate = ExitGate(width, eps) if config.exit_gate else None
        self.norm = RMSNorm(width, eps)
        self.rotary_emb = RotaryEmbedding(config)
        self.attentions = nn.ModuleList(SlotAttention(config, slot) for slot in range(config.num_hidden_layers))
        self.gradient_checkpointing = False
        self.stored_calls: int | None = None
        """With activation checkpointing: how many block calls of a forward keep their activations, the first ones."""
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        recurrence: int | str | None = None,
        exit: Exit | ExitTracker | None = None,  # noqa: A002
        output_passes: bool = False,
        output_routing: bool = False,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_router_logits: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> LoopedMoEOutput | tuple[Any, ...]:
        """Run the model; ``recurrence`` is the number of times that the loop block runs in this call.

        ``exit`` is a criterion that needs no logits ("state" or "gate"), or the tracker of a model with an output head.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("give either `input_ids` or `inputs_embeds`")
        R = resolve_recurrence(recurrence, exit.exit if isinstance(exit, ExitTracker) else exit, self.config)
        if isinstance(exit, Exit):
            if exit.needs_logits:
                raise InputError(f"exit: criterion {exit.criterion!r} needs a model with an output head; use 'state'")
            exit = ExitTracker(exit, nn.Identity(), slice(None), self.exit_gate)  # noqa: A001
        use_cache = (self.config.use_cache and not self.training) if use_cache is None else use_cache
        cache = DynamicCache() if use_cache and past_key_values is None else past_key_values
        wanted = Wanted(
            routing=output_routing,
            hidden_states=self._wants("output_hidden_states", output_hidden_states),
            attentions=self._wants("output_attentions", output_attentions),
            router_logits=self._wants("output_router_logits", output_router_logits),
        )
        arguments = (self, R, cache, wanted, kwargs)
        call = ForwardCall(*arguments) if exit is None else ExitCall(exit, *arguments)
        every = output_passes or (exit is not None and exit.exit.needs_logits)

        x_BTD = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        call.prepare(x_BTD, attention_mask, position_ids)
        input_BTD = self.run_prelude(call, x_BTD)
        if isinstance(call, ExitCall):
            states, hiddens = call.run_loop(input_BTD, every)
        else:
            states, hiddens = self.run_loop(call, input_BTD, every)
        last_BTD = hiddens[-1] if every else self.read_out(call, states[-1])

        if cache is not None:
            call.slots.trim(cache)
        out = LoopedMoEOutput(last_hidden_state=last_BTD, past_key_values=cache)
        if output_passes:
            out.pass_states, out.pass_hidden_states = tuple(states), tuple(hiddens)
        call.report(out)
        return out if self._wants("return_dict", return_dict) else out.to_tuple()

    def run_prelude(self, call: ForwardCall, x_BTD: Tensor) -> Tensor:
        """Run the layers before the loop."""
        for layer, block in enumerate(self.prelude):
            x_BTD = call.run(block, x_BTD, slot=layer, routings=call.tally.prelude)
        return x_BTD

    def run_loop(self, call: ForwardCall, input_BTD: Tensor, every: bool) -> tuple[list[Tensor], list[Tensor]]:
        """Run R passes; return the state after each and, with ``every``, the read-out of each."""
        state_BTD = input_BTD
        states: list[Tensor] = []
        hiddens: list[Tensor] = []
        for pass_index in range(call.recurrence):
            state_BTD = self.run_pass(call, state_BTD, input_BTD, pass_index)
            states.append(state_BTD)
            if every:
                hiddens.append(self.read_out(call, state_BTD, again=pass_index > 0))
        return states, hiddens

    def run_pass(self, call: ForwardCall, state_BTD: Tensor, input_BTD: Tensor, pass_index: int) -> Tensor:
        """Run the loop block once, from the state and the loop's input."""
        x_BTD = inject(self.config.injection, self.injection, state_BTD, input_BTD)
        with torch.set_grad_enabled(call.has_gradients(pass_index)):
            for layer, block in enumerate(self.loop):
                x_BTD = call.looped(block, x_BTD, layer, pass_index)
        return x_BTD

    def read_out(self, call: ForwardCall, x_BTD: Tensor, again: bool = False) -> Tensor:
        """Run coda and final norm; ``again`` overwrites the cache slots of an earlier read-out."""
        if again and call.cache is not None and not call.cache.is_croppable:
            raise InputError(
                "reading every pass rewrites the coda's cache slots, which a static cache cannot: use a dynamic one"
            )
        routings, use = call.tally.of_read_out(), SlotUse(replace=True) if again else None
        for layer, block in enumerate(self.coda):
            x_BTD = call.run(block, x_BTD, slot=call.slots.coda(layer), use=use, routings=routings)
        hidden_BTD: Tensor = self.norm(x_BTD)
        return hidden_BTD


class LoopedMoEForCausalLM(LoopedMoEPreTrainedModel, LoopedGenerationMixin):  # type: ignore[no-untyped-call]
    """The model with its output head, tied to the embeddings unless the config says otherwise."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    _tp_plan = {"lm_head": "colwise_gather_output"}  # noqa: RUF012  (the embeddings that it may be tied to are sharded)

    def __init__(self, config: LoopedMoEConfig) -> None:
        super().__init__(config)
        self.model = LoopedMoEModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        recurrence: int | str | None = None,
        exit: Exit | None = None,  # noqa: A002
        output_passes: bool = False,
        output_attentions: bool | None = None,  # named, because tools look for it in the signature
        output_logits: bool = True,
        num_items_in_batch: int | Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> LoopedMoECausalOutput | tuple[Any, ...]:
        """Return logits, and the loss when there are ``labels``.

        ``output_logits=False`` with labels computes the loss in chunks, without storing logits.
        ``recurrence`` is the number of passes, or "auto" with an ``exit`` criterion and the config's as the most;
        ``output_passes`` adds logits and states of every pass, ``output_routing`` the experts that each token chose.
        ``num_items_in_batch`` is the number of targets of a whole batch of which this call is a part: every term of the
        loss is then its share of the batch's, so that the losses of the parts add up.
        """
        # Only a training loss has a random R: preference training and RL compare two forwards without labels.
        R = resolve_recurrence(recurrence, exit, self.config, draw=self.training and labels is not None)
        keep = logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-logits_to_keep or None, None)
        supervised = self.training and labels is not None and self.config.reads_every_pass
        out: LoopedMoEOutput = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            recurrence=R,
            exit=None if exit is None else ExitTracker(exit, self.lm_head, keep, self.model.exit_gate),
            output_passes=output_passes or supervised,
            output_attentions=output_attentions,
            return_dict=True,
            **kwargs,
        )
        if isinstance(exit, RecordedExit):
            exit.record(out.passes, out.executed)
        assert out.last_hidden_state is not None
        hiddens = out.pass_hidden_states or (out.last_hidden_state,)
        fields: dict[str, Any] = {name: out.get(name) for name in (*PASSED_ON, *(OF_PASSES if output_passes else ()))}
        pass_logits: tuple[Tensor, ...] = ()
        if output_logits or labels is None:
            pass_logits = tuple(self.lm_head(hidden_BTD[:, keep]) for hidden_BTD in hiddens)
            fields |= {"logits": pass_logits[-1], "pass_logits": pass_logits if output_passes else None}
        if labels is not None:
            states = out.pass_states if supervised else None
            fields |= loss_terms(self, hiddens, states, pass_logits, out.z_loss, labels, num_items_in_batch, kwargs)
        result = LoopedMoECausalOutput(**fields)
        return result if self._wants("return_dict", return_dict) else result.to_tuple()


class LoopedMoEForSequenceClassification(GenericForSequenceClassification, LoopedMoEPreTrainedModel):  # type: ignore[no-untyped-call]
    """The model with a head that classifies a sequence by its last token; reward models are of this form."""

    def __init__(self, config: LoopedMoEConfig) -> None:
        LoopedMoEPreTrainedModel.__init__(self, config)  # the generic class would need the model to be registered
        self.num_labels = config.num_labels
        self.model = LoopedMoEModel(config)
        self.score = nn.Linear(config.hidden_size, self.num_labels, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]
