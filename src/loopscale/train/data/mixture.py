"""Reasoning, knowledge and a little text in one stream: the task of the laboratory's downstream experiment.

A row has one kind of problem, which its symbols identify: no two kinds share symbols. Reasoning is a word of S3.
Knowledge is an entity, named by two symbols, and a question for each of its two attributes. Text is a window of the
built-in corpus, whose answer is always the next character.

Shapes: B problems, T tokens, C characters, A attributes.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loopscale.core.errors import InputError
from loopscale.train.data.batches import IGNORED
from loopscale.train.data.tasks import Rows, Split, Task, held_out

Part = Literal["words", "facts", "text"]
PARTS: tuple[Part, ...] = ("words", "facts", "text")
SHARES = (8, 6, 2)
"""Rows of each part in sixteen."""
SYMBOLS, ATTRIBUTES = 64, 2
"""Symbols of the first half of a name, of the second half, and of the values; attributes of an entity."""
LETTERS = "\n" + string.digits + string.ascii_lowercase + string.punctuation + " "
"""The characters of the text, in lower case; any other one is a space."""
CHARACTERS = 1 << 20
"""How much of the built-in corpus is read, from its end."""
HELD_OUT_TEXT = 8
"""The text is divided into this many parts, of which the last is for validation."""


@dataclass(frozen=True)
class Mixture(Task):
    """Words of S3, facts about entities and a little text, a row of one kind each."""

    name, kind = "mixture", "mixture"
    about = "Words of S3, facts about entities and a little text, mixed by rows."
    counts, usual, hardest = "entities with two facts each", 1024, SYMBOLS**2
    LENGTH = 2 + ATTRIBUTES

    @property
    def words(self) -> tuple[str, ...]:
        """The permutations, the symbols of names and values, the attributes, and characters."""
        from loopscale.train.data.puzzles import S3

        names = tuple(f"{half}{symbol:02}" for half in "vw" for symbol in range(SYMBOLS))
        attributes = tuple(f"{letter}?" for letter in "ab")
        characters = ("text:newline", *(f"text:{letter}" for letter in LETTERS[1:-1]), "text:space")
        return (*S3(1).words, *names, *attributes, *characters)

    @cached_property
    def first(self) -> dict[Part, int]:
        """The first token of each part."""
        return {"words": 0, "facts": 6, "text": 6 + 2 * SYMBOLS + ATTRIBUTES}

    @property
    def longer(self) -> None:
        """More entities are other ones, which no model can know."""
        return

    @property
    def chances(self) -> dict[str, float]:
        """The score of a uniform guess, by part; text has a loss instead."""
        return {"words": 1 / 6, "facts": 1 / SYMBOLS}

    @property
    def chance(self) -> float:
        """The share of rows that a guess gets right where nothing is known, text left out."""
        words, facts, _ = (share / sum(SHARES) for share in SHARES)
        return words * self.chances["words"] + facts * self.chances["facts"]

    @property
    def bits(self) -> float:
        """Bits of all facts."""
        return float(self.difficulty * ATTRIBUTES * np.log2(SYMBOLS))

    @cached_property
    def entities(self) -> Rows:
        """The names of all entities, as one number each."""
        return np.random.default_rng((self.seed, 0)).permutation(SYMBOLS**2)[: self.difficulty]

    @cached_property
    def values(self) -> Rows:
        """The value of every attribute of every name (names, A)."""
        return np.random.default_rng((self.seed, 1)).integers(SYMBOLS, size=(SYMBOLS**2, ATTRIBUTES))

    def facts(self, entities_B: Rows) -> Rows:
        """Return rows that ask for the attributes of some entities."""
        first = self.first["facts"]
        rows_BT = np.empty((len(entities_B), self.LENGTH), np.int64)
        rows_BT[:, 0], rows_BT[:, 1] = np.divmod(self.entities[entities_B], SYMBOLS)
        rows_BT[:, 1] += SYMBOLS
        rows_BT[:, 2:] = 2 * SYMBOLS + np.arange(ATTRIBUTES)
        return first + rows_BT

    def of(self, part: Part, rng: np.random.Generator, count: int, split: Split = "train") -> Rows:
        """Return problems of one part; words and text are never in both splits, facts are the same in both."""
        if part == "facts":
            return self.facts(rng.integers(self.difficulty, size=count))
        if part == "text":
            text_C = text(split == "validation")
            starts_B = rng.integers(len(text_C) - self.LENGTH + 1, size=count)
            windows_BT: Rows = self.first["text"] + text_C[starts_B[:, None] + np.arange(self.LENGTH)]
            return windows_BT
        rows_BT = rng.integers(6, size=(count, self.LENGTH))
        while len(wrong := np.flatnonzero(held_out(rows_BT) != (split == "validation"))):
            rows_BT[wrong] = rng.integers(6, size=(len(wrong), self.LENGTH))
        return rows_BT

    def draw(self, rng: np.random.Generator, count: int, split: Split = "train") -> Rows:
        """Return problems of all parts in their shares, one part after the other."""
        edges = [round(count * sum(SHARES[:part]) / sum(SHARES)) for part in range(len(PARTS) + 1)]
        counts = [last - first for first, last in pairwise(edges)]
        return np.concatenate([self.of(part, rng, rows, split) for part, rows in zip(PARTS, counts, strict=True)])

    def problems(self, rng: np.random.Generator, count: int, split: Split = "train") -> tuple[Rows, Rows]:
        """Return problems of a split, and their answers."""
        if split == "longer":
            raise InputError(
                "task 'mixture' has no longer problems: more entities are other ones; score its validation split"
            )
        rows_BT = self.draw(rng, count, split)
        return rows_BT, self.solve(rows_BT)

    def validation(self, part: Part, count: int) -> Rows:
        """Return what a part is scored on: new words and new text, and every fact."""
        if part == "facts":
            return self.facts(np.arange(self.difficulty))
        return self.of(part, np.random.default_rng(2**31), count, "validation")

    def check(self, ids_BT: Rows, predicted_BT: Rows) -> NDArray[np.bool_]:
        """Return which rows have their last answer right (B,): parts ask at different positions."""
        answers_BT = self.solve(ids_BT)
        last_B = answers_BT.shape[1] - 1 - np.argmax(answers_BT[:, ::-1] != IGNORED, axis=1)
        rows_B = np.arange(len(ids_BT))
        right_B: NDArray[np.bool_] = predicted_BT[rows_B, last_B] == answers_BT[rows_B, last_B]
        return right_B

    def part_of(self, ids_BT: Rows) -> Rows:
        """Return the index of the part that each row belongs to (B,)."""
        return np.searchsorted(list(self.first.values()), ids_BT[:, 0], side="right") - 1

    def solve(self, ids_BT: Rows) -> Rows:
        """Return the answer to every position, by the part that the row belongs to."""
        from loopscale.train.data.puzzles import S3

        part_B, answers_BT = self.part_of(ids_BT), np.full(ids_BT.shape, IGNORED)
        of_words, of_facts, of_text = (part_B == index for index in range(len(PARTS)))
        answers_BT[of_words] = S3(self.LENGTH).solve(ids_BT[of_words])
        first = self.first["facts"]
        names_B = (ids_BT[of_facts, 0] - first) * SYMBOLS + ids_BT[of_facts, 1] - first - SYMBOLS
        answers_BT[of_facts, 2:] = first + self.values[names_B]
        answers_BT[of_text, :-1] = ids_BT[of_text, 1:]
        return answers_BT


@cache
def text(validation: bool) -> Rows:
    """Return the end of the built-in corpus as numbers: its last part for validation, the rest for training."""
    from loopscale.train.data.corpus import documents

    number = {character: index for index, character in enumerate(LETTERS)}
    characters = "\n".join(document for _, document in documents())[-CHARACTERS:].lower()
    codes = np.array([number.get(character, len(LETTERS) - 1) for character in characters])
    edge = len(codes) - len(codes) // HELD_OUT_TEXT
    return codes[edge:] if validation else codes[:edge]
