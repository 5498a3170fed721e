"""Validation loss after each pass, from one forward over the text; with early exit, from one for each threshold; with a
smaller KV cache, token by token.

Shapes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from loopscale.core.errors import InputError
from loopscale.evaluate import lm
from loopscale.evaluate.runner import Checkpoint, EvalProgress, EvalSettings
from loopscale.evaluate.store import Key, Result, ResultStore, Score
from loopscale.evaluate.texts import Text, Windows, cut
from loopscale.model import Exit, LoopedMoEForCausalLM

LARGEST_EXPONENT = 700.0
"""Beyond this the exponential of a loss overflows a float."""
Batches = Iterable[tuple[Tensor, Tensor]]
"""Token windows (B, T), and how many tokens of each count."""


@dataclass
class LossSum:
    """Sums over windows, for a mean over tokens and its standard error over windows."""

    tokens: int = 0
    windows: int = 0
    total: float = 0.0
    squares: float = 0.0
    """Of the windows' total losses."""
    cross: float = 0.0
    """Of the windows' total losses times their tokens."""
    lengths: float = 0.0
    """Of the windows' tokens, squared."""

    def add(self, losses_BT: Tensor, counted_BT: Tensor) -> None:
        """Add a batch: the loss of every position, and which of them count."""
        sums = (losses_BT * counted_BT).sum(dim=1).double().tolist()
        counts = counted_BT.sum(dim=1).tolist()
        self.tokens += sum(counts)
        self.windows += len(counts)
        self.total += sum(sums)
        self.squares += sum(total * total for total in sums)
        self.cross += sum(total * count for total, count in zip(sums, counts, strict=True))
        self.lengths += sum(count * count for count in counts)

    def mean(self) -> Score:
        """Return the mean over tokens."""
        mean = self.total / self.tokens
        return Score(mean, self._stderr(mean), False)

    def scores(self, tokens_per_byte: float) -> dict[str, Score]:
        """Return loss in nats a token, perplexity, and bits a byte of the text."""
        loss = self.mean()
        mean, error = loss.value, loss.stderr
        bits = mean / math.log(2) * tokens_per_byte
        perplexity = math.exp(mean) if mean < LARGEST_EXPONENT else math.inf
        return {
            "loss": loss,
            "perplexity": Score(perplexity, None if error is None else error * perplexity, False),
            "bits_per_byte": Score(bits, None if error is None else error * bits / mean, False),
        }

    def _stderr(self, mean: float) -> float | None:
        """Return the standard error of a ratio of sums over independent windows."""
        if self.windows < 2:
            return None
        spread = self.squares - 2 * mean * self.cross + mean * mean * self.lengths
        return math.sqrt(max(spread, 0.0) * self.windows / (self.windows - 1)) / self.tokens


@dataclass(frozen=True)
class PassLosses:
    """What is measured for one recurrence, threshold or KV cache."""

    recurrence: int
    sums: LossSum
    mean_passes: float | None = None
    cost: LossSum | None = None
    """What a smaller KV cache adds to the loss, window by window."""


@torch.no_grad()
def pass_losses(
    model: LoopedMoEForCausalLM, batches: Batches, most: int, tell: Callable[[int], None]
) -> list[PassLosses]:
    """Return the loss at every recurrence from 1 to ``most``: the read-out of each pass, all from one forward."""
    sums = [LossSum() for _ in range(most)]
    for done, (ids_BT, lengths_B) in enumerate(batches, 1):
        ids_BT, counted_BT = _placed(model, ids_BT, lengths_B)
        out = model(ids_BT, recurrence=most, output_passes=True, use_cache=False)
        for total, logits_BTV in zip(sums, out.pass_logits, strict=True):
            total.add(token_losses(logits_BTV, ids_BT), counted_BT)
        tell(done)
    return [PassLosses(recurrence, total) for recurrence, total in enumerate(sums, 1)]


@torch.no_grad()
def exit_losses(
    model: LoopedMoEForCausalLM, batches: Batches, most: int, exit_: Exit, tell: Callable[[int], None]
) -> PassLosses:
    """Return the loss when tokens leave the loop early, and the mean passes of the tokens that predict."""
    total, passes, count = LossSum(), 0, 0
    for done, (ids_BT, lengths_B) in enumerate(batches, 1):
        ids_BT, counted_BT = _placed(model, ids_BT, lengths_B)
        out = model(ids_BT, recurrence=most, exit=exit_, use_cache=False)
        total.add(token_losses(out.logits, ids_BT), counted_BT)
        passes += int((out.passes[:, :-1] * counted_BT).sum())
        count += int(counted_BT.sum())
        tell(done)
    return PassLosses(most, total, passes / count)


@torch.no_grad()
def cache_losses(
    model: LoopedMoEForCausalLM, batches: Batches, recurrence: int, kv: str, tell: Callable[[int], None]
) -> PassLosses:
    """Return the loss of text that is read token by token, as decoding does, through a smaller KV cache.

    ``kv`` is "passes:N" or "window:N": the model's ``kept_passes`` or ``kept_window``. Its cost is measured on the
    same windows, against the keys and values of every pass.
    """
    total, cost, done = LossSum(), LossSum(), 0
    with _keeping(model, kv):
        for ids_BT, lengths_B in batches:
            ids_BT, counted_BT = _placed(model, ids_BT, lengths_B)
            # A text that is read at once attends to the keys of every pass, with any cache.
            whole_BT = token_losses(model(ids_BT, recurrence=recurrence, use_cache=False).logits, ids_BT)
            steps = []
            for losses_B in _decoded(model, ids_BT, recurrence):
                steps.append(losses_B)
                done += 1
                tell(done)
            losses_BT = torch.stack(steps, dim=1)
            total.add(losses_BT, counted_BT)
            cost.add(losses_BT - whole_BT, counted_BT)
    return PassLosses(recurrence, total, cost=cost)


@contextmanager
def _keeping(model: LoopedMoEForCausalLM, kv: str) -> Iterator[None]:
    """Let the model keep a smaller KV cache for a while."""
    config = model.config
    own = config.kept_passes, config.kept_window
    kind, _, count = kv.partition(":")
    config.kept_passes, config.kept_window = (int(count) if kind == name else None for name in ("passes", "window"))
    try:
        yield
    finally:
        config.kept_passes, config.kept_window = own


def _decoded(model: LoopedMoEForCausalLM, ids_BT: Tensor, recurrence: int) -> Iterator[Tensor]:
    """Yield the loss (B,) of each next token, reading one token at a time."""
    cache = None
    for now_B, next_B in pairwise(ids_BT.unbind(dim=1)):
        out = model(now_B[:, None], past_key_values=cache, use_cache=True, recurrence=recurrence)
        cache = out.past_key_values
        yield cross_entropy(out.logits[:, -1].float(), next_B, reduction="none")


def token_losses(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """Return the loss of predicting each token from those before it (B, T - 1)."""
    flat = cross_entropy(logits_BTV[:, :-1].float().flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="none")
    return flat.view(ids_BT.shape[0], -1)


def _placed(model: LoopedMoEForCausalLM, ids_BT: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the windows on the model's device, and which positions are tokens to predict (B, T - 1)."""
    counted_BT = torch.arange(1, ids_BT.shape[1]) < lengths_B[:, None]
    return ids_BT.to(model.device), counted_BT.to(model.device)


def evaluate_text(
    checkpoint: Checkpoint,
    text: Text,
    recurrences: Sequence[int],
    settings: EvalSettings,
    store: ResultStore,
    progress: EvalProgress,
) -> list[Result]:
    """Return the loss at each recurrence, or at the largest with early exit or a smaller cache, measured or stored."""
    if settings.backend != "hf":
        raise InputError(f"backend {settings.backend!r} gives no loss for each pass; use hf for texts")
    wanted = (max(recurrences),) if settings.at_one_recurrence else recurrences
    keys = [_key(checkpoint, text, recurrence, settings) for recurrence in wanted]
    if any(store.find(key) is None for key in keys):
        results = _measure(checkpoint, text, keys, settings, progress)
        store.add_model(checkpoint.model)
        for result in results:
            store.add(result)
    progress.finished(len(keys))
    stored = [store.find(key) for key in keys]
    return [result for result in stored if result is not None]


def text_settings(text: Text, settings: EvalSettings) -> dict[str, Any]:
    """Return everything that a loss on a text depends on, as plain values."""
    return {**settings.plain(), "limit": None, "text": text.digest}


def _key(checkpoint: Checkpoint, text: Text, recurrence: int, settings: EvalSettings) -> Key:
    return Key(checkpoint.model.checkpoint, f"text:{text.name}", recurrence, text_settings(text, settings))


def _measure(
    checkpoint: Checkpoint, text: Text, keys: Sequence[Key], settings: EvalSettings, progress: EvalProgress
) -> list[Result]:
    start = time.monotonic()
    model, tokenizer = lm.load(checkpoint.path, checkpoint.tokenizer, settings.dtype)
    windows = cut(text, tokenizer, lm.context_of(model.config, settings.context))
    most, name = keys[-1].recurrence, f"loss on {text.name}{f' with {settings.kv}' if settings.kv else ''}"
    batches = windows.batches(settings.batch)
    tell = partial(progress.now, name)
    if settings.kv is not None:
        losses = [cache_losses(model, batches, most, settings.kv, tell)]
    elif settings.exit is None:
        losses = pass_losses(model, batches, most, tell)
    else:
        exit_ = Exit(settings.exit.criterion, settings.exit.threshold)
        losses = [exit_losses(model, batches, most, exit_, tell)]
    seconds = round(time.monotonic() - start, 3)
    by_passes = {one.recurrence: one for one in losses}
    return [_result(key, by_passes[key.recurrence], windows, seconds) for key in keys]


def _result(key: Key, losses: PassLosses, windows: Windows, seconds: float) -> Result:
    scores = losses.sums.scores(windows.tokens_per_byte)
    if losses.cost is not None:
        scores["kv_cost"] = losses.cost.mean()
    return Result(key, scores, losses.sums.windows, seconds, losses.mean_passes)
