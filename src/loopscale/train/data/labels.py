"""Rows with their own labels: each is one sequence of the batch, and only its labels are targets.

Text is packed, and every token of it is a target. Here a row stays whole and is padded to the context; labels say what
to predict and where: the answers of a task, the completion of a prompt, or what a file gives beside its ids. A batch is
a function of seed and step, so that a run resumes exactly and on any number of processes.

Shapes: B rows, T tokens of the context.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscale.core.errors import InputError
from loopscale.train.data.batches import IGNORED, Batch, Batches, MixedBatches, rows_of_rank
from loopscale.train.data.permutation import shuffled
from loopscale.train.data.puzzles import Facts
from loopscale.train.data.tasks import Rows, Split, Task
from loopscale.train.data.token_store import TokenStore

VALIDATION = 4096
"""Problems of a task's validation split."""
ENDLESS = 10**15
"""The tokens of a split whose rows are drawn for as long as a run needs them."""


@dataclass(frozen=True)
class LabelledStore(TokenStore):
    """A source of rows with labels."""

    @abstractmethod
    def rows(self, split: str) -> int | None:
        """Return how many rows a split has; None where rows are drawn at every step."""

    @abstractmethod
    def read(self, split: str, indices: NDArray[np.int64], context: int) -> tuple[Rows, Rows]:
        """Return the ids and labels of rows of a split, padded to the context."""

    def drawn(self, seed: int, step: int, count: int, context: int) -> tuple[Rows, Rows]:
        """Return the ids and labels of a training step, where ``rows`` is None."""
        raise NotImplementedError


class LabelledBatches:
    """The rows of one split in a fixed order: shuffled anew in each epoch, or for evaluation as they are."""

    def __init__(
        self, store: LabelledStore, *, split: str, batch: int, context: int, seed: int, shuffle: bool = True
    ) -> None:
        self.store, self.split, self.size, self.context = store, split, batch, context
        self.seed, self.shuffle, self.count = seed, shuffle, store.rows(split)
        if self.count == 0:
            raise InputError(f"the {split} split has no row; give more rows, or raise [data] validation")
        self.steps_per_epoch = -(-(self.count or 1) // batch)

    def batch(self, step: int, *, rank: int = 0, ranks: int = 1) -> Batch:
        """Return the rows of a step that belong to a rank."""
        rows = rows_of_rank(self.size, rank, ranks)
        if self.count is None:
            ids_BT, labels_BT = self.store.drawn(self.seed, step, self.size, self.context)
            ids_BT, labels_BT = ids_BT[rows], labels_BT[rows]
        else:
            ids_BT, labels_BT = self._stored(step, rows, self.count)
        starts_BT = np.zeros(ids_BT.shape, np.bool_)
        starts_BT[:, 0] = True
        return Batch(ids_BT, labels_BT, starts_BT)

    def _stored(self, step: int, rows: NDArray[np.int64], count: int) -> tuple[Rows, Rows]:
        if not self.shuffle:
            indices = step % self.steps_per_epoch * self.size + rows
            ids_BT, labels_BT = self.store.read(self.split, indices % count, self.context)
            labels_BT[indices >= count] = IGNORED  # the last batch is filled up with rows that do not count
            return ids_BT, labels_BT
        indices = shuffled(step * self.size + rows, count, self.seed)
        return self.store.read(self.split, indices, self.context)


AnyBatches = Batches | MixedBatches | LabelledBatches
"""The batches of a run."""


def padded(ids_BT: Rows, answers_BT: Rows, context: int, end: int) -> tuple[Rows, Rows]:
    """Return problems and their answers as ids and labels of ``context`` tokens.

    The model shifts its labels: what it says after reading a token is compared with the label of the next one.
    """
    count, length = ids_BT.shape
    ids, labels = np.full((count, context), end, np.int64), np.full((count, context), IGNORED, np.int64)
    ids[:, :length], labels[:, 1 : length + 1] = ids_BT, answers_BT
    return ids, labels


@dataclass(frozen=True)
class TaskStore(LabelledStore):
    """The problems of a task, drawn as they are needed."""

    task: Task

    @classmethod
    def of(cls, task: Task) -> TaskStore:
        """Return the store of a task."""
        source = {"task": task.name, "difficulty": task.difficulty, "seed": task.seed}
        digest = sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()
        return cls(Path("tasks") / task.name, task.vocabulary, task.end, digest, {}, {}, source, task)

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of each split."""
        return {"train": ENDLESS, "validation": (self.rows("validation") or 0) * (self.task.length + 1)}

    @property
    def about(self) -> str:
        """What a run trains on, in a few words."""
        return f"task {self.task.name} with {self.task.difficulty:,} {self.task.counts}"

    def tokenizer(self) -> Any:
        """Return the vocabulary of the task as a Hugging Face tokenizer."""
        return self.task.tokenizer()

    def rows(self, split: str) -> int | None:
        """Return how many problems a split has: all facts, or None for those that are drawn at every step."""
        if isinstance(self.task, Facts):
            return self.task.difficulty
        return None if split == "train" else VALIDATION

    def read(self, split: str, indices: NDArray[np.int64], context: int) -> tuple[Rows, Rows]:
        """Return facts by their index, or problems of the fixed validation set."""
        if isinstance(self.task, Facts):
            ids_BT = self.task.facts(indices)
            return padded(ids_BT, self.task.solve(ids_BT), context, self.end)
        ids_BT, answers_BT = self._validation
        return padded(ids_BT[indices], answers_BT[indices], context, self.end)

    def drawn(self, seed: int, step: int, count: int, context: int) -> tuple[Rows, Rows]:
        """Return new problems for a training step."""
        return padded(*self.task.problems(np.random.default_rng((seed, step)), count), context, self.end)

    @cached_property
    def _validation(self) -> tuple[Rows, Rows]:
        return fixed_problems(self.task, VALIDATION, "validation")


def fixed_problems(task: Task, count: int, split: Split) -> tuple[Rows, Rows]:
    """Return problems of a split, always the same ones, and their answers."""
    return task.problems(np.random.default_rng((2**31, task.seed)), count, split)
