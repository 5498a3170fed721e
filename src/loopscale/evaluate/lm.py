"""The looped model as lm-eval sees it: its Hugging Face backend, at any recurrence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor

from loopscale.model import Exit, LoopedMoEForCausalLM


@register_model("loopscale")
class LoopedLM(HFLM):  # type: ignore[misc]
    """lm-eval's Hugging Face model at a recurrence, which may change between calls, with early exit if wanted."""

    def __init__(
        self,
        pretrained: str | LoopedMoEForCausalLM,
        recurrence: int | None = None,
        exit: Exit | None = None,  # noqa: A002
        **options: Any,
    ) -> None:
        super().__init__(pretrained=pretrained, backend="causal", **options)
        self.recurrence, self.exit = recurrence, exit
        self.passes = PassCount()
        self._rows: Iterator[Tensor] = iter(())

    @property
    def max_gen_toks(self) -> int:
        """Tokens to generate when a task does not say: lm-eval's 256, or half of a shorter context."""
        return min(256, int(self.max_length) // 2)

    def _model_call(self, inps: Tensor, attn_mask: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            out = self.model(inps, recurrence=self.recurrence, exit=self.exit, use_cache=False)
        if self.exit is not None:
            self._rows = iter(out.passes)
        logits: Tensor = out.logits
        return logits

    def _select_cont_toks(self, logits: Tensor, contlen: int | None = None, inplen: int | None = None) -> Tensor:
        """Take the scored positions of one row; rows come in the order of the batch, and so do their passes."""
        if self.exit is not None:
            scored = slice((inplen or 0) - (contlen or 0), inplen)
            self.passes.add(next(self._rows)[scored])
        chosen: Tensor = super()._select_cont_toks(logits, contlen, inplen)
        return chosen

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Tensor:
        options["recurrence"] = self.recurrence
        if self.exit is None:
            plain: Tensor = super()._model_generate(context, max_length, stop, **options)
            return plain
        early = {"exit": self.exit, "return_dict_in_generate": True}
        out = super()._model_generate(context, max_length, stop, **options, **early)
        for new, passes in zip(out.sequences[:, context.shape[1] :], out.passes, strict=True):
            self.passes.add(passes[: self._kept(new.tolist(), stop)])
        sequences: Tensor = out.sequences
        return sequences

    def _kept(self, tokens: Sequence[int], stop: list[str]) -> int:
        """Return how many new tokens a row needed: a batch goes on until its last row has met a stop."""
        for count in range(1, len(tokens) + 1):
            text = self.tok_decode(tokens[:count], skip_special_tokens=False)
            if any(word in text for word in stop):
                return count
        return len(tokens)


class PassCount:
    """A running mean of the passes that scored and generated tokens used."""

    def __init__(self) -> None:
        self.total, self.count = 0, 0

    def add(self, passes: Tensor) -> None:
        """Count some tokens."""
        self.total += int(passes.sum())
        self.count += passes.numel()

    @property
    def mean(self) -> float | None:
        """The mean so far; None when nothing was counted."""
        return self.total / self.count if self.count else None
