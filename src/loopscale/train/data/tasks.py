"""Tasks with exact answers: what to train on when a model should reason or remember, at a difficulty of your choice.

A problem is a row of tokens. The answer to some of its positions is known: what the model should predict there, after
reading the row up to that token. A word of the group S3, for example, has an answer at every position, the product of
all elements so far. Most problems therefore have many answers, and only the last of them needs the whole row.

Problems are drawn, never stored. A problem belongs to validation if a hash of its tokens says so, so that the two
splits never share one; the split "longer" has harder problems than any in training. A task of the kind "memory" is the
exception: its facts are to be remembered, so that both splits have the same ones.

Shapes: B problems, T tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from loopscale.core.errors import InputError
from loopscale.train.data.batches import IGNORED

Rows = NDArray[np.int64]
Split = Literal["train", "validation", "longer"]
SPLITS: tuple[Split, ...] = ("train", "validation", "longer")
END = "<|endoftext|>"
HELD_OUT = 8
"""One problem in this many belongs to validation."""
ROUNDS = 64
"""Draws after which a task counts as having no problem of a split."""


@dataclass(frozen=True)
class Task(ABC):
    """A family of problems at one difficulty."""

    difficulty: int
    seed: int = 0
    """Selects the facts of a task of memory; other tasks ignore it."""

    name: ClassVar[str]
    kind: ClassVar[Literal["reasoning", "recall", "memory", "mixture"]]
    about: ClassVar[str]
    """What is asked, in one line."""
    counts: ClassVar[str]
    """What the difficulty is a number of."""
    usual: ClassVar[int]
    """The difficulty of a file that sets none."""
    hardest: ClassVar[int]
    scored: ClassVar[Literal["last", "all"]] = "last"
    """What a problem's score is: its last answer, or all of them together."""

    def __post_init__(self) -> None:
        if not 1 <= self.difficulty <= self.hardest:
            raise InputError(
                f"task {self.name!r}: the difficulty is {self.difficulty}; it counts {self.counts}, from 1 to "
                f"{self.hardest}: choose within these"
            )

    @property
    @abstractmethod
    def words(self) -> tuple[str, ...]:
        """The vocabulary as people read it; a token's id is its index."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Rows:
        """Return ``count`` random problems (B, T)."""

    @abstractmethod
    def solve(self, ids_BT: Rows) -> Rows:
        """Return the answer to every position (B, T), from the tokens alone; IGNORED where nothing is asked."""

    @property
    def longer(self) -> Task | None:
        """The same task with problems of half as much again, or None where it has none."""
        harder = min(self.hardest, -(-self.difficulty * 3 // 2))
        return replace(self, difficulty=harder) if harder > self.difficulty else None

    @property
    def end(self) -> int:
        """The token after a problem."""
        return len(self.words)

    @property
    def vocabulary(self) -> int:
        """Tokens, with that of the end."""
        return len(self.words) + 1

    @cached_property
    def length(self) -> int:
        """Tokens of a problem."""
        return int(self.draw(np.random.default_rng(0), 1).shape[1])

    @cached_property
    def asked(self) -> list[int]:
        """The positions that have an answer."""
        return [int(at) for at in np.flatnonzero(self.solve(self.draw(np.random.default_rng(0), 1))[0] != IGNORED)]

    @property
    def chance(self) -> float:
        """The score of the best constant answer: what a model has that has learnt nothing about a problem."""
        rows_BT = self.draw(np.random.default_rng(0), 4096)
        answers_BA = self.solve(rows_BT)[:, self.asked]
        scored_BA = answers_BA[:, -1:] if self.scored == "last" else answers_BA
        counts = np.unique(scored_BA, axis=0, return_counts=True)[1]
        return float(counts.max() / len(rows_BT))

    def problems(self, rng: np.random.Generator, count: int, split: Split = "train") -> tuple[Rows, Rows]:
        """Return ``count`` problems of a split, and their answers."""
        if split == "longer":
            if self.longer is None:
                raise InputError(
                    f"task {self.name!r} at difficulty {self.difficulty} has no longer problems; lower the difficulty"
                )
            return self.longer.problems(rng, count)
        rows: list[Rows] = []
        missing = count
        for _ in range(ROUNDS):
            # Validation keeps one problem in HELD_OUT, training all the others.
            rows_BT = self.draw(rng, missing * (HELD_OUT if split == "validation" else 1))
            rows.append(rows_BT[held_out(rows_BT) == (split == "validation")][:missing])
            missing -= len(rows[-1])
            if not missing:
                ids_BT = np.concatenate(rows)
                return ids_BT, self.solve(ids_BT)
        raise InputError(
            f"task {self.name!r} at difficulty {self.difficulty} has too few different problems for a {split} split; "
            "raise the difficulty"
        )

    def check(self, ids_BT: Rows, predicted_BT: Rows) -> NDArray[np.bool_]:
        """Return which problems are solved by what a model predicts at every position (B,)."""
        right_BA = (predicted_BT == self.solve(ids_BT))[:, self.asked]
        solved_B: NDArray[np.bool_] = right_BA[:, -1] if self.scored == "last" else right_BA.all(axis=1)
        return solved_B

    def show(self, ids_T: Rows) -> str:
        """Return a problem and its answers as two aligned lines; a dot is where nothing is asked."""
        answers_T = self.solve(ids_T[None])[0]
        above = [self.words[token] for token in ids_T]
        below = ["·" if token == IGNORED else self.words[token] for token in answers_T]
        widths = [max(len(a), len(b)) for a, b in zip(above, below, strict=True)]
        lines = (
            " ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)) for line in (above, below)
        )
        return "\n".join(f"{label} {line}".rstrip() for label, line in zip(("reads  ", "answers"), lines, strict=True))

    def tokenizer(self) -> Any:
        """Return the vocabulary as a Hugging Face tokenizer; words are separated by spaces."""
        return word_tokenizer((*self.words, END))


def word_tokenizer(words: tuple[str, ...]) -> Any:
    """Return a Hugging Face tokenizer of words that are separated by spaces; one of them is the end."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(WordLevel({word: token for token, word in enumerate(words)}, unk_token=END))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)  # type: ignore[no-untyped-call]


def held_out(rows_BT: Rows) -> NDArray[np.bool_]:
    """Return which problems belong to validation, by a hash of their tokens (B,)."""
    mixed_B = np.zeros(len(rows_BT), np.uint64)
    for column_B in rows_BT.T:
        mixed_B = (mixed_B ^ column_B.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed_B ^= mixed_B >> np.uint64(29)
    belongs_B: NDArray[np.bool_] = mixed_B % np.uint64(HELD_OUT) == 0
    return belongs_B
