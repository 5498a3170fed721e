"""Data from a Python function: what a run trains on where neither files nor tasks describe it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscale.core.errors import InputError
from loopscale.train.data.batches import IGNORED
from loopscale.train.data.labels import ENDLESS, LabelledStore
from loopscale.train.data.tasks import END, Rows, word_tokenizer

Draw = Callable[[np.random.Generator, int, int], Any]
VALIDATION = 1024
"""Rows of the validation split, drawn with a seed that no step has."""


@dataclass(frozen=True)
class DrawnStore(LabelledStore):
    """Rows that a function draws: ``train(config, out, data=DrawnStore.of("mine", draw, vocabulary=256))``.

    ``draw(rng, count, context)`` returns token ids, (count, at most context); every token is a target.
    It may also return a pair of ids and labels, aligned as in Hugging Face, where -100 is no target. All that is random
    should come from ``rng``, a function of seed and step: the run then resumes exactly, and on any number of processes.
    """

    name: str
    draw: Draw
    words: Any = None
    """A Hugging Face tokenizer that is saved with the model; without one, tokens are written as numbers."""

    @classmethod
    def of(cls, name: str, draw: Draw, vocabulary: int, tokenizer: Any = None, end: int | None = None) -> DrawnStore:
        """Return a store; a run resumes only with data of the same name and vocabulary."""
        source = {"drawn": name, "vocabulary": vocabulary}
        digest = sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()
        last = vocabulary - 1 if end is None else end
        return cls(Path("drawn") / name, vocabulary, last, digest, {}, {}, source, name, draw, tokenizer)

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of each split."""
        return {"train": ENDLESS, "validation": ENDLESS}

    @property
    def about(self) -> str:
        """What a run trains on, in a few words."""
        return f"rows of the function {self.name}"

    def tokenizer(self) -> Any:
        """Return the tokenizer that is saved with the model."""
        numbers = (END if token == self.end else str(token) for token in range(self.vocabulary))
        return self.words or word_tokenizer(tuple(numbers))

    def rows(self, split: str) -> int | None:
        """Return how many rows a split has; None for training, whose rows are drawn at every step."""
        return None if split == "train" else VALIDATION

    def drawn(self, seed: int, step: int, count: int, context: int) -> tuple[Rows, Rows]:
        """Return the rows of a training step."""
        return self._rows(np.random.default_rng((seed, step)), count, context)

    def read(self, split: str, indices: NDArray[np.int64], context: int) -> tuple[Rows, Rows]:
        """Return rows of the validation split, which are the same for every run."""
        if context not in self._validation:
            self._validation[context] = self._rows(np.random.default_rng((2**31, 0)), VALIDATION, context)
        ids, labels = self._validation[context]
        return ids[indices], labels[indices]

    @cached_property
    def _validation(self) -> dict[int, tuple[Rows, Rows]]:
        return {}

    def _rows(self, rng: np.random.Generator, count: int, context: int) -> tuple[Rows, Rows]:
        result = self.draw(rng, count, context)
        pair = result if isinstance(result, tuple) else (result, result)
        try:
            ids, labels = (np.array(part, np.int64) for part in pair)
        except (TypeError, ValueError):
            raise InputError(
                f"data {self.name!r}: its function returned no rows of whole numbers; return an array of token ids, "
                "or a pair of ids and labels"
            ) from None
        if ids.ndim != 2 or ids.shape != labels.shape or len(ids) != count or not 1 <= ids.shape[1] <= context:
            raise InputError(
                f"data {self.name!r}: its function returned ids {ids.shape} and labels {labels.shape}; return {count} "
                f"rows of at most {context} tokens"
            )
        if ids.min() < 0 or ids.max() >= self.vocabulary or labels.max() >= self.vocabulary:
            raise InputError(f"data {self.name!r}: its function returned ids outside of 0 to {self.vocabulary - 1}")
        shape, length = (count, context), ids.shape[1]
        whole, targets = np.full(shape, self.end, np.int64), np.full(shape, IGNORED, np.int64)
        whole[:, :length], targets[:, :length] = ids, labels
        targets[:, 0] = IGNORED  # nothing comes before the first token
        return whole, targets
