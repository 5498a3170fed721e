"""Validation loss and perplexity at each recurrence on any text, kept in the results store like any task."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from loopscale.errors import InputError
from loopscale.evaluate import backends
from loopscale.evaluate.losses import PassLosses, exit_losses, pass_losses
from loopscale.evaluate.runner import Progress, Setup, Subject
from loopscale.evaluate.store import Key, Result, Store
from loopscale.evaluate.text import Text, Windows, cut
from loopscale.model import Exit


def evaluate_text(
    subject: Subject, text: Text, recurrences: Sequence[int], setup: Setup, store: Store, progress: Progress
) -> list[Result]:
    """Return the loss at each recurrence, or with early exit at the largest; measure what the store lacks."""
    if setup.backend != "hf":
        raise InputError(f"backend {setup.backend!r} gives no loss for each pass; use hf for texts")
    wanted = recurrences if setup.exit is None else (max(recurrences),)
    keys = [_key(subject, text, recurrence, setup) for recurrence in wanted]
    if any(store.find(key) is None for key in keys):
        results = _measure(subject, text, keys, setup, progress)
        store.add_model(subject.model)
        for result in results:
            store.add(result)
    progress.finished(len(keys))
    found = [store.find(key) for key in keys]
    return [each for each in found if each is not None]


def text_settings(text: Text, setup: Setup) -> dict[str, Any]:
    """Return what a loss on a text hangs on, as plain values."""
    return {**setup.plain(), "limit": None, "text": text.digest}


def _key(subject: Subject, text: Text, recurrence: int, setup: Setup) -> Key:
    return Key(subject.model.checkpoint, f"text:{text.name}", recurrence, text_settings(text, setup))


def _measure(subject: Subject, text: Text, keys: Sequence[Key], setup: Setup, progress: Progress) -> list[Result]:
    start = time.monotonic()
    model, words = backends.load(subject.path, subject.tokenizer, setup.dtype)
    windows = cut(text, words, backends.context_of(model.config, setup.context))
    most, name = keys[-1].recurrence, f"loss on {text.name}"
    batches = windows.batches(setup.batch)
    if setup.exit is None:
        found = pass_losses(model, batches, most, lambda done: progress.now(name, done))
    else:
        exit_ = Exit(setup.exit.criterion, setup.exit.threshold)
        found = [exit_losses(model, batches, most, exit_, lambda done: progress.now(name, done))]
    seconds = round(time.monotonic() - start, 3)
    by_passes = {each.recurrence: each for each in found}
    return [_result(key, by_passes[key.recurrence], windows, seconds) for key in keys]


def _result(key: Key, losses: PassLosses, windows: Windows, seconds: float) -> Result:
    scores = losses.sums.scores(windows.tokens_per_byte)
    return Result(key, scores, losses.sums.windows, seconds, losses.mean_passes)
