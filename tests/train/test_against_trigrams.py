"""A small model, trained for seconds on the built-in corpus, against counts of three tokens on the same text."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from loopscale.train.config import TrainConfig
from loopscale.train.data.batches import IGNORED, Batches
from loopscale.train.data.stores import open_tokens
from loopscale.train.trainer import train

RUN = {
    "model": {"width": 32, "recurrence": 2},
    "data": {"context": 128},
    "optimizer": {"learning_rate": 0.01},
    "schedule": {"warmup_steps": 20},
    "run": {"tokens": "600k", "batch": 8, "checkpoint_every": 0, "validation_sequences": 64},
}


def counts(tokens: np.ndarray, vocabulary: int, order: int) -> np.ndarray:
    """Return how often each token follows each context of ``order - 1`` tokens."""
    index = np.zeros(len(tokens) - order + 1, np.int64)
    for place in range(order):
        index = index * vocabulary + tokens[place : len(tokens) - order + 1 + place]
    return np.bincount(index, minlength=vocabulary**order).reshape(-1, vocabulary)


def trigram_loss(batches: Batches, tokens: np.ndarray, vocabulary: int, sequences: int) -> float:
    """Return the loss of a trigram model that falls back on bigrams and unigrams (Witten and Bell's weights)."""
    tables = [counts(tokens, vocabulary, order) for order in (1, 2, 3)]
    total, targets = 0.0, 0
    for step in range(-(-sequences // batches.size)):
        part = batches.batch(step)
        for row, labels in zip(part.ids, part.labels, strict=True):
            places = np.flatnonzero(labels[2:] != IGNORED) + 2
            chance = np.full(len(places), 1 / vocabulary)
            contexts = [
                np.zeros(len(places), np.int64),
                row[places - 1],
                row[places - 2] * vocabulary + row[places - 1],
            ]
            for table, context in zip(tables, contexts, strict=True):
                seen = table[context]
                kinds, number = (seen > 0).sum(1), seen.sum(1)
                weight = np.where(number > 0, number / np.maximum(number + kinds, 1), 0.0)
                found = seen[np.arange(len(places)), row[places]] / np.maximum(number, 1)
                chance = weight * found + (1 - weight) * chance
            total, targets = total - float(np.log(chance).sum()), targets + len(places)
    return total / targets


def test_a_small_model_beats_a_trigram_model_of_the_same_text(tmp_path: Path) -> None:
    config = TrainConfig.from_dict(RUN)
    store = open_tokens(config, progress=False)
    tokens = np.concatenate(store.maps("train")).astype(np.int64)
    batches = Batches(store, split="validation", batch=8, context=128, seed=0, shuffle=False)
    trigrams = trigram_loss(batches, tokens, store.vocabulary, sequences=64)
    loss = train(config, tmp_path / "run")["validation_loss"]
    assert 1.5 < trigrams < 2.5  # the counts are a real model of English bytes
    assert loss < trigrams - 0.1
