# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""The looped MoE: prelude, loop block run R times, coda. One file for generate, lm-eval and vLLM.

Shapes: B batch, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

import json
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerationMixin
from transformers.modeling_utils import PreTrainedModel

from .blocks import Attention, Block, GatedInjection, LowRank, RMSNorm, RotaryEmbedding, build_injection
from .config import InputError, LoopedMoEConfig
from .early_exit import Exit, ExitGate, ExitTracker, RecordedExit
from .forward import (
    ForwardPass,
    LoopedGenerateOutput,
    LoopedMoECausalOutput,
    LoopedMoEOutput,
    Wanted,
    resolve_recurrence,
)
from .kernels import Linear, chunked_cross_entropy
from .moe import Experts, Router
from .speculative import SelfSpeculation


class LoopedMoEPreTrainedModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """What Transformers needs to know about both models below."""

    config: LoopedMoEConfig
    config_class = LoopedMoEConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _keep_in_fp32_modules_strict = ["e_score_correction_bias"]  # noqa: RUF012
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        std = self.config.initializer_range
        if isinstance(module, Experts):
            init.normal_(module.gate_up_proj, mean=0.0, std=std)
            init.normal_(module.down_proj, mean=0.0, std=std)
        elif isinstance(module, Router):
            for weight in module.parameters():
                init.normal_(weight, mean=0.0, std=std)
            init.zeros_(module.bias_rows)
        elif isinstance(module, LowRank):
            init.normal_(module.down, mean=0.0, std=std)
        elif isinstance(module, GatedInjection):
            init.normal_(module.weight, mean=0.0, std=std)
        for name, value in getattr(module, "CONSTANTS", {}).items():
            init.constant_(module.get_parameter(name), value)

    def _wants(self, option: str, argument: bool | None) -> bool:
        """Return an option of a call, or of the config where the call does not set it."""
        return bool(getattr(self.config, option, False)) if argument is None else argument

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True  # Transformers would look for its decorator in this file

    def get_correct_experts_implementation(self, requested_experts: str | None) -> str:
        """Return our own experts unless another implementation is asked for by name."""
        return super().get_correct_experts_implementation(requested_experts or "eager")

    packed_bits: int | None = None
    """Bits of weights that ``loopscale.model.loading.quantize`` has packed in place."""

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save the model with its code; weights that were packed in place are refused."""
        if self.packed_bits is not None:
            raise InputError(
                f"weights packed into {self.packed_bits} bits in place cannot be saved: save the model before, and "
                "quantise it after loading"
            )
        super().save_pretrained(*args, **kwargs)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """Load a checkpoint; missing or extra tensors are refused, where Transformers would fill in or drop them.

        A checkpoint of the model without its head may lack the head, and the model without a head ignores one. A call
        with ``output_loading_info=True`` gets the list of differences instead of an error, and one with an empty
        ``state_dict`` new weights.
        """
        model, info = cast(
            "tuple[Any, dict[str, Any]]", super().from_pretrained(*args, output_loading_info=True, **kwargs)
        )
        where = args[0] if args else kwargs.get("pretrained_model_name_or_path")
        _restore_recurrence(model, where)
        if output_loading_info:
            return model, info
        if kwargs.get("state_dict") == {}:
            return model
        for kind, verb in (("missing_keys", "lacks"), ("unexpected_keys", "holds")):
            if names := sorted(set(info[kind]) - {"lm_head.weight"}):
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                known = "which the model needs" if verb == "lacks" else "which the model does not have"
                raise InputError(f"{where}: the checkpoint {verb} tensor {names[0]!r}{more}, {known}")
        return model


class LoopedMoEModel(LoopedMoEPreTrainedModel):  # type: ignore[no-untyped-call]
    """The model without its output head."""

    def __init__(self, config: LoopedMoEConfig) -> None:
        super().__init__(config)
        config.check()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.prelude = nn.ModuleList(Block(config) for _ in range(config.prelude_layers))
        self.loop = nn.ModuleList(Block(config, looped=True) for _ in range(config.loop_layers))
        self.coda = nn.ModuleList(Block(config) for _ in range(config.coda_layers))
        width = config.hidden_size
        self.injection = build_injection(config)
        self.exit_gate = ExitGate(width, config.rms_norm_eps) if config.exit_gate else None
        self.norm = RMSNorm(width, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)
        self.attentions = nn.ModuleList(Attention(config, slot) for slot in range(config.num_hidden_layers))
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
        exit: ExitTracker | None = None,  # noqa: A002
        output_passes: bool = False,
        output_routing: bool = False,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_router_logits: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> LoopedMoEOutput | tuple[Any, ...]:
        """Run the model; ``recurrence`` is the number of times that the loop block runs in this call."""
        criterion = None if exit is None else exit.exit
        R = resolve_recurrence(recurrence, criterion, self.config)
        x_BTD = self._embedded(input_ids, inputs_embeds)
        use_cache = (self.config.use_cache and not self.training) if use_cache is None else use_cache
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        wanted = Wanted(
            output_routing,
            self._wants("output_hidden_states", output_hidden_states),
            self._wants("output_attentions", output_attentions),
            self._wants("output_router_logits", output_router_logits),
        )
        if self.config.loop_order == "sequence" and (exit is not None or output_passes):
            raise InputError("loop_order is 'sequence', which has no state between passes: no exit, no output_passes")
        run = ForwardPass(self, R, past_key_values, wanted, kwargs)
        run.prepare(x_BTD, attention_mask, position_ids)
        every = output_passes or (criterion is not None and criterion.needs_logits)
        last_BTD, states, hiddens = run.loop(run.prelude(x_BTD), exit, every)
        out = LoopedMoEOutput(last_hidden_state=last_BTD, past_key_values=past_key_values)
        if output_passes:
            out.pass_states, out.pass_hidden_states = tuple(states), tuple(hiddens)
        if exit is not None:
            out.passes = exit.finish(len(states))
            out.executed = torch.tensor(run.executed)
        run.report(out)
        return out if self._wants("return_dict", return_dict) else out.to_tuple()

    def _embedded(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("give either input_ids or inputs_embeds")
        if inputs_embeds is not None:
            return inputs_embeds
        embedded_BTD: Tensor = self.embed_tokens(input_ids)
        return embedded_BTD

    def slot_attentions(self, count: int) -> list[nn.Module]:
        """Return the attention of each slot; those beyond the config's recurrence are made on the spot."""
        own = list(self.attentions)[:count]
        return own + [Attention(self.config, slot) for slot in range(len(own), count)]

    def inject(self, state_BTD: Tensor, input_BTD: Tensor) -> Tensor:
        """Return what a pass starts from: the state, with the loop's input if the config says so."""
        kind = self.config.injection
        if self.injection is None:
            return state_BTD if kind == "none" else state_BTD + input_BTD
        both = (torch.cat((state_BTD, input_BTD), dim=-1),) if kind == "concat" else (state_BTD, input_BTD)
        joined: Tensor = self.injection(*both)
        return joined


class Targets(NamedTuple):
    """The next tokens that a call is trained on; X counts all positions of a batch."""

    next_X: Tensor
    """The next token, or -100 where there is none to predict."""
    scale_X: Tensor
    """Weight of each position in the loss: one over the number of targets, or zero."""
    share: Tensor
    """The call's part of the targets of the whole batch."""

    @classmethod
    def of(cls, labels_BT: Tensor, items: int | Tensor | None) -> Targets:
        """Return the targets of a call; ``items`` is the number of targets of the whole batch, if that is larger."""
        next_X = functional.pad(labels_BT[:, 1:], (0, 1), value=-100).flatten()
        is_target_X = next_X != -100
        count = is_target_X.sum()
        total = count.clamp(min=1) if items is None else items
        return cls(next_X, is_target_X / total, count / total)


class LoopedMoEForCausalLM(LoopedMoEPreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """The model with its output head, tied to the embeddings unless the config says otherwise."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    _tp_plan = {"lm_head": "colwise_gather_output"}  # noqa: RUF012  (the embeddings that it may be tied to are sharded)

    def __init__(self, config: LoopedMoEConfig) -> None:
        super().__init__(config)
        self.model = LoopedMoEModel(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
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
        output_routing: bool = False,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_router_logits: bool | None = None,
        return_dict: bool | None = None,
        output_logits: bool = True,
        num_items_in_batch: int | Tensor | None = None,
        **kwargs: Any,
    ) -> LoopedMoECausalOutput | tuple[Any, ...]:
        """Return logits, and the loss when there are ``labels``.

        ``output_logits=False`` with labels computes the loss in chunks, without storing logits.
        ``recurrence`` is the number of passes, or "auto" with an ``exit`` criterion and the config's as the most;
        ``output_passes`` adds logits and states of every pass, ``output_routing`` the experts that each token chose.
        ``num_items_in_batch`` is the number of targets of a whole batch of which this call is a part: every term of the
        loss is then its share of the batch's, so that the losses of the parts add up.
        """
        # Only a training loss has a random R: two forwards without labels are compared by preference training and RL.
        R = resolve_recurrence(recurrence, exit, self.config, draw=self.training and labels is not None)
        keep = logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-logits_to_keep or None, None)
        supervised = self.training and labels is not None and self.config.reads_every_pass
        out: LoopedMoEOutput = self.model(
            input_ids,
            attention_mask,
            position_ids,
            past_key_values,
            inputs_embeds,
            use_cache,
            R,
            None if exit is None else ExitTracker(exit, self.lm_head, keep, self.model.exit_gate),
            output_passes or supervised,
            output_routing,
            output_hidden_states,
            output_attentions,
            output_router_logits,
            return_dict=True,
            **kwargs,
        )
        assert out.last_hidden_state is not None
        hiddens = out.pass_hidden_states or (out.last_hidden_state,)
        fields = {name: out.get(name) for name in (*PASSED_ON, *(OF_PASSES if output_passes else ()))}
        if output_logits or labels is None:
            pass_logits = tuple(self.lm_head(hidden_BTD[:, keep]) for hidden_BTD in hiddens)
            fields |= {"logits": pass_logits[-1], "pass_logits": pass_logits if output_passes else None}
        if isinstance(exit, RecordedExit):
            assert out.passes is not None
            assert out.executed is not None
            exit.forwards.append((out.passes[:, -1:], out.executed))
        if labels is not None:
            targets = Targets.of(labels, num_items_in_batch)
            z_loss = self.config.router_z_loss_coef * out.z_loss if self.training and out.z_loss is not None else 0.0
            z_loss = z_loss if num_items_in_batch is None else z_loss * targets.share
            if supervised and self.model.exit_gate is not None:
                assert out.pass_states is not None
                cross_entropy, exit_loss = self._expected_loss(hiddens, out.pass_states, targets)
                z_loss, fields["exit_loss"] = z_loss + exit_loss, exit_loss
            elif output_logits:
                cross_entropy = self._cross_entropy(pass_logits, labels, num_items_in_batch, kwargs)
            else:
                cross_entropy = self._chunked_cross_entropy(hiddens, targets)
            fields |= {"loss": cross_entropy + z_loss, "cross_entropy": cross_entropy}
        result = LoopedMoECausalOutput(**fields)
        return result if self._wants("return_dict", return_dict) else result.to_tuple()

    def _pass_weights(self, passes: int) -> list[float]:
        """Return the weight of each pass in the loss; they add up to one."""
        chosen = self.config.loop_loss_weights if self.training else None
        weights = [0.0] * (passes - 1) + [1.0]
        if chosen is not None and sum(chosen[:passes]) > 0:
            weights = [chosen[min(index, len(chosen) - 1)] for index in range(passes)]
        return [weight / sum(weights) for weight in weights]

    def _cross_entropy(
        self, pass_logits: tuple[Tensor, ...], labels: Tensor, items: int | Tensor | None, kwargs: dict[str, Any]
    ) -> Tensor:
        """Return the next-token loss of the last pass, or in training the weighted mean over all passes."""
        options = {**kwargs, "vocab_size": self.config.vocab_size, "num_items_in_batch": items}
        total = torch.zeros((), device=labels.device)
        for logits_BTV, weight in zip(pass_logits, self._pass_weights(len(pass_logits)), strict=True):
            if weight:
                loss = self.loss_function(logits=logits_BTV, labels=labels, **options)
                total = total + loss * weight
        return total

    def _chunked_cross_entropy(self, hiddens: tuple[Tensor, ...], targets: Targets) -> Tensor:
        """Return the same from hidden states, without storing the logits of all tokens; zero without targets."""
        weighted = [(h, w) for h, w in zip(hiddens, self._pass_weights(len(hiddens)), strict=True) if w]
        rows = [hidden_BTD.flatten(0, 1) for hidden_BTD, _ in weighted]
        return chunked_cross_entropy(
            torch.cat(rows) if len(rows) > 1 else rows[0],
            self.lm_head.weight,
            targets.next_X.repeat(len(rows)),
            torch.cat([targets.scale_X * weight for _, weight in weighted]),
        )

    def _expected_loss(
        self, hiddens: tuple[Tensor, ...], states: tuple[Tensor, ...], targets: Targets
    ) -> tuple[Tensor, Tensor]:
        """Return the loss expected over the exit distribution of each token, and minus its weighted entropy."""
        assert self.model.exit_gate is not None
        chance_RBT, log_RBT = self.model.exit_gate.distribution(states)
        expected = chunked_cross_entropy(
            torch.cat([hidden_BTD.flatten(0, 1) for hidden_BTD in hiddens]),
            self.lm_head.weight,
            targets.next_X.repeat(len(hiddens)),
            (chance_RBT.flatten(1) * targets.scale_X).flatten(),
        )
        negative_entropy_X = (chance_RBT * log_RBT).sum(0).flatten()
        return expected, self.config.exit_entropy_coef * (negative_entropy_X * targets.scale_X).sum()

    def generate(
        self,
        inputs: Tensor | None = None,
        *args: Any,
        recurrence: int | str | None = None,
        exit: Exit | None = None,  # noqa: A002
        draft_recurrence: int | None = None,
        draft_tokens: int = 5,
        draft_margin: float = 0.5,
        **kwargs: Any,
    ) -> Any:
        """Generate as every Hugging Face model does, at any recurrence.

        ``exit`` ends a token's loop early; with ``return_dict_in_generate=True`` the result has ``passes``, the number
        that each new token used. ``draft_recurrence`` decodes the same greedy tokens faster: so many passes draft up
        to ``draft_tokens``, as long as the best logit leads the second by ``draft_margin``, and the other passes verify
        them together; the result has ``drafted`` and ``accepted``.
        """
        if recurrence is None:
            settings = kwargs.get("generation_config") or self.generation_config
            recurrence = getattr(settings, "recurrence", None)
        R = resolve_recurrence(recurrence, exit, self.config)
        self._check_length(inputs if inputs is not None else kwargs.get("input_ids"), kwargs.get("max_new_tokens"))
        if draft_recurrence is not None:
            input_ids = inputs if inputs is not None else kwargs.pop("input_ids", None)
            new, ends, full = self._plain_greedy(input_ids, exit, kwargs)
            decoder = SelfSpeculation(self, R, draft_recurrence, draft_tokens, draft_margin)
            sequences = decoder.generate(input_ids, new, ends)
            return decoder.report(sequences) if full else sequences
        recorded = None if exit is None else RecordedExit(**vars(exit))
        result = super().generate(inputs, *args, recurrence=R, exit=recorded, **kwargs)  # type: ignore[misc]
        if recorded is not None and type(result) is GenerateDecoderOnlyOutput:
            passes, executed = zip(*recorded.forwards, strict=True)
            return LoopedGenerateOutput(**result, passes=torch.cat(passes, dim=1), executed=torch.stack(executed))
        return result

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Build the cache for the recurrence of this call.

        Transformers reads the depth from ``self.config``, which other threads use: it gets a copy of the model object,
        with the same weights and a config of its own.
        """
        view = copy(self)
        view.config = _with_recurrence(self.config, model_kwargs.get("recurrence") or self.config.recurrence)
        prepare = GenerationMixin._prepare_cache_for_generation
        prepare(view, generation_config, model_kwargs, *args, **kwargs)
        # The length of static caches: a later call with a shorter one then needs no other graph.
        if (longest := getattr(view, "_previous_max_cache_length", None)) is not None:
            self._previous_max_cache_length = longest

    def _plain_greedy(
        self, input_ids: Tensor | None, exit_: Exit | None, kwargs: dict[str, Any]
    ) -> tuple[int, frozenset[int], bool]:
        """Read the arguments of speculative decoding: new tokens, end tokens, and whether a full output is wanted.

        What it would not follow is refused, so that its tokens are always those of plain decoding.
        """
        mask = kwargs.pop("attention_mask", None)
        if input_ids is None or len(input_ids) != 1 or (mask is not None and not bool(mask.all())):
            raise InputError("draft_recurrence decodes one sequence without padding; call it once for each prompt")
        chosen = kwargs.pop("generation_config", None)
        settings, others = self._prepare_generation_config(chosen, **kwargs)  # type: ignore[misc]
        if settings.do_sample or (settings.num_beams or 1) > 1 or exit_ is not None:
            raise InputError("draft_recurrence decodes greedily: leave out do_sample, num_beams and exit")
        size, end = input_ids.shape[1], settings.eos_token_id
        changes = self._get_logits_processor(settings, size, device=str(input_ids.device))  # type: ignore[misc]
        if unknown := [name for name, value in others.items() if value is not None and name != "use_cache"]:
            raise InputError(f"draft_recurrence does not take the argument {unknown[0]!r}")
        if changes:
            raise InputError(
                f"draft_recurrence decodes greedily from the model's own logits, which {type(changes[0]).__name__} "
                "would change: leave out its setting"
            )
        new = settings.max_new_tokens or (settings.max_length or 20) - size
        return (
            new,
            frozenset(end if isinstance(end, list) else [] if end is None else [end]),
            bool(settings.return_dict_in_generate),
        )

    def _check_length(self, input_ids: Tensor | None, new: int | None) -> None:
        """Refuse before the work begins what could not be finished; the last token is never read."""
        most = self.config.max_position_embeddings
        if input_ids is not None and new is not None and input_ids.shape[1] + new - 1 > most:
            raise InputError(
                f"{input_ids.shape[1]} tokens and {new} new ones are more than max_position_embeddings ({most})"
            )


PASSED_ON = (
    "past_key_values",
    "hidden_states",
    "attentions",
    "router_logits",
    "routing",
    "expert_counts",
    "z_loss",
    "dropped",
    "passes",
    "executed",
)
OF_PASSES = ("pass_states", "pass_hidden_states")


def _restore_recurrence(model: nn.Module, where: object) -> None:
    """Give the generation config the recurrence that was saved with it; Transformers drops fields it does not know."""
    file = Path(str(where)) / "generation_config.json"
    settings = getattr(model, "generation_config", None)
    if settings is not None and file.is_file():
        saved = json.loads(file.read_text(encoding="utf-8")).get("recurrence")
        if saved is not None:
            # The config refuses a recurrence that is not one.
            settings.recurrence = _with_recurrence(cast(LoopedMoEConfig, model.config), saved).recurrence


def _with_recurrence(config: LoopedMoEConfig, recurrence: int) -> LoopedMoEConfig:
    changed = copy(config)
    changed.recurrence = recurrence
    return changed
