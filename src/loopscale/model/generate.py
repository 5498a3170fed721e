# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""Generation at any recurrence, with early exit and self-speculation. Nothing here changes the model or its config, so
threads may generate at different recurrences at the same time.

Shapes: B batch, T tokens.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerationMixin

from .config import LoopedMoEConfig
from .errors import InputError
from .exit import Exit, RecordedExit
from .forward import resolve_recurrence
from .outputs import LoopedGenerateOutput
from .pretrained import with_recurrence
from .speculative import SelfSpeculation

if TYPE_CHECKING:
    from .model import LoopedMoEForCausalLM


class LoopedGenerationMixin(GenerationMixin):
    """``generate`` with a recurrence, an exit and drafts."""

    config: LoopedMoEConfig

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
        self._check_length(inputs if inputs is not None else kwargs.get("input_ids"), kwargs)
        if draft_recurrence is not None:
            input_ids = inputs if inputs is not None else kwargs.pop("input_ids", None)
            new, ends, full = self._plain_greedy(input_ids, exit, kwargs)
            model = cast("LoopedMoEForCausalLM", self)
            decoder = SelfSpeculation(model, R, draft_recurrence, draft_tokens, draft_margin)
            sequences = decoder.generate(input_ids, new, ends)
            return decoder.report(sequences) if full else sequences
        recorded = None if exit is None else RecordedExit(**vars(exit))
        result = super().generate(inputs, *args, recurrence=R, exit=recorded, **kwargs)  # type: ignore[misc]
        if recorded is not None and type(result) is GenerateDecoderOnlyOutput:
            passes, executed = zip(*recorded.forwards, strict=True)
            return LoopedGenerateOutput(**result, passes=torch.cat(passes, dim=1), executed=torch.stack(executed))
        return result

    def _prepare_generation_config(self, generation_config: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Pass the recurrence on to every forward; Transformers takes out what a generation config holds too."""
        own = {name: kwargs.pop(name) for name in ("recurrence", "exit") if name in kwargs}
        settings, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)  # type: ignore[misc]
        return settings, {**model_kwargs, **own}

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], generation_mode: Any, *args: Any, **kwargs: Any
    ) -> bool:
        """Build the cache for the recurrence of this call.

        A cache policy makes logits depend on how many tokens are read at once, so drafts that are verified together
        would change the tokens: they are refused. Transformers reads the depth from ``self.config``, which other
        threads use: it gets a copy of the model object, with the same weights and its own config.
        """
        if generation_mode == GenerationMode.ASSISTED_GENERATION and (
            self.config.kept_passes is not None or self.config.kept_window is not None
        ):
            raise InputError(
                "assisted decoding (an assistant, prompt lookup) would change the tokens of a model with kept_passes "
                "or kept_window: leave it out, or set both to None"
            )
        view: Any = copy(self)
        view.config = with_recurrence(self.config, model_kwargs.get("recurrence") or self.config.recurrence)
        arguments = (generation_config, model_kwargs, generation_mode, *args)
        prepared = GenerationMixin._prepare_cache_for_generation(view, *arguments, **kwargs)
        # The length of static caches: a later call with a shorter one then needs no other graph.
        if (longest := getattr(view, "_previous_max_cache_length", None)) is not None:
            self._previous_max_cache_length = longest
        return prepared

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
        settings, others = self._prepare_generation_config(chosen, **kwargs)
        if settings.do_sample or (settings.num_beams or 1) > 1 or exit_ is not None:
            raise InputError("draft_recurrence decodes greedily: leave out do_sample, num_beams and exit")
        size, end = input_ids.shape[1], settings.eos_token_id
        changes = self._get_logits_processor(settings, size, device=str(input_ids.device))  # type: ignore[misc]
        if unknown := [name for name, value in others.items() if value is not None and name != "use_cache"]:
            raise InputError(f"draft_recurrence does not take the argument {unknown[0]!r}; leave it out")
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

    def _check_length(self, input_ids: Tensor | None, kwargs: dict[str, Any]) -> None:
        """Refuse before the work begins what could not be finished; the last token is never read."""
        most = self.config.max_position_embeddings
        settings = kwargs.get("generation_config") or self.generation_config
        new, length = (kwargs.get(name) or getattr(settings, name, None) for name in ("max_new_tokens", "max_length"))
        size = 0 if input_ids is None else input_ids.shape[1]
        if new is not None and size + new - 1 > most:
            raise InputError(
                f"{size} tokens and {new} new ones are more than max_position_embeddings ({most}); lower max_new_tokens"
            )
        if new is None and length is not None and length - 1 > most:
            raise InputError(f"max_length is {length}, more than max_position_embeddings ({most}); lower it")
