"""The families of problems, by name: words of groups, pointers, addition, expressions, graphs, recall and facts.

The public library of such tasks, reasoning-gym, has text with one answer at its end. These have an answer at many
positions, which is what small models learn from, and arrays of thousands of problems in a millisecond.

Shapes: B problems, T tokens, N nodes, K hops or pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import permutations
from string import ascii_lowercase

import numpy as np
from numpy.typing import NDArray

from loopscale.core.errors import InputError, nearest, shown
from loopscale.train.data.batches import IGNORED
from loopscale.train.data.mixture import Mixture
from loopscale.train.data.tasks import Rows, Task


class Words(Task):
    """The word problem of a group: at every position the product of all elements so far."""

    kind, counts, usual, hardest = "reasoning", "elements of the word", 12, 512
    points: int
    """How many points the group permutes."""

    @property
    def words(self) -> tuple[str, ...]:
        """The permutations: "231" moves 1 to 2, 2 to 3 and 3 to 1."""
        return tuple("".join(str(point + 1) for point in element) for element in permutations(range(self.points)))

    @property
    def chance(self) -> float:
        """All products are equally likely."""
        return 1 / math.factorial(self.points)

    def draw(self, rng: np.random.Generator, count: int) -> Rows:
        """Return random words."""
        return rng.integers(math.factorial(self.points), size=(count, self.difficulty))

    def solve(self, ids_BT: Rows) -> Rows:
        """Return the running product: the first element acts first."""
        table = products(self.points)
        answers_BT = ids_BT.copy()
        for at in range(1, ids_BT.shape[1]):
            answers_BT[:, at] = table[answers_BT[:, at - 1], ids_BT[:, at]]
        return answers_BT


@cache
def products(points: int) -> Rows:
    """Return the table of a symmetric group: the element that acts as the row's and then the column's."""
    elements = list(permutations(range(points)))
    number = {element: index for index, element in enumerate(elements)}
    return np.array([[number[tuple(after[image] for image in first)] for after in elements] for first in elements])


@dataclass(frozen=True)
class Z2(Words):
    """Parity."""

    name, points, about = "z2", 2, "Words of Z2: the parity of all elements so far."


@dataclass(frozen=True)
class S3(Words):
    """The smallest group whose order of factors matters."""

    name, points, about = "s3", 3, "Words of S3: the product of all permutations so far."


@dataclass(frozen=True)
class S5(Words):
    """The smallest symmetric group that is not solvable: no constant depth is known to suffice."""

    name, points, about, usual = "s5", 5, "Words of S5: the product of all permutations so far.", 8


@dataclass(frozen=True)
class Hops(Task):
    """Pointer chasing: each node points to another, in one cycle; where do 1, 2, … K hops from a node lead?"""

    name, kind, about = "hops", "reasoning", "Pointers in one cycle: where 1, 2, … hops from a node lead."
    counts, usual, hardest = "hops", 4, 7
    NODES = 8

    @property
    def words(self) -> tuple[str, ...]:
        """The nodes, a mark before the question and one for each further hop."""
        return (*ascii_lowercase[: self.NODES], "?", "next")

    def draw(self, rng: np.random.Generator, count: int) -> Rows:
        """Return the pointers in random order, then the start, then a mark for each further hop."""
        cycle_BN = _shuffled(rng, count, self.NODES)
        pairs_BNP = np.stack((cycle_BN, np.roll(cycle_BN, -1, axis=1)), axis=2)
        pairs_BNP = np.take_along_axis(pairs_BNP, _shuffled(rng, count, self.NODES)[:, :, None], axis=1)
        question_BT = np.full((count, 1 + self.difficulty), self.NODES + 1)
        question_BT[:, 0], question_BT[:, 1] = self.NODES, rng.integers(self.NODES, size=count)
        return np.concatenate((pairs_BNP.reshape(count, -1), question_BT), axis=1)

    def solve(self, ids_BT: Rows) -> Rows:
        """Follow the pointers."""
        pairs = 2 * self.NODES
        next_BN = np.zeros((len(ids_BT), self.NODES), np.int64)
        np.put_along_axis(next_BN, ids_BT[:, 0:pairs:2], ids_BT[:, 1:pairs:2], axis=1)
        answers_BT = np.full(ids_BT.shape, IGNORED)
        node_B1 = ids_BT[:, pairs + 1 : pairs + 2]
        for at in range(pairs + 1, ids_BT.shape[1]):
            node_B1 = np.take_along_axis(next_BN, node_B1, axis=1)
            answers_BT[:, at] = node_B1[:, 0]
        return answers_BT


@dataclass(frozen=True)
class Addition(Task):
    """Two numbers of ``difficulty`` digits each; the digits of the sum are asked all at once, the units first."""

    name, kind, about = "addition", "reasoning", "The digits of a sum, units first, all read at once."
    counts, usual, hardest, scored = "digits of each number", 4, 18, "all"

    @property
    def words(self) -> tuple[str, ...]:
        """Digits, signs and a mark for each further digit of the sum."""
        return (*"0123456789", "+", "=", "next")

    def draw(self, rng: np.random.Generator, count: int) -> Rows:
        """Return ``12+34=`` and a mark for each digit of the sum after the first."""
        n = self.difficulty
        ids_BT = np.full((count, 3 * n + 2), 12)
        ids_BT[:, :n], ids_BT[:, n + 1 : 2 * n + 1] = rng.integers(10, size=(2, count, n))
        ids_BT[:, n], ids_BT[:, 2 * n + 1] = 10, 11
        return ids_BT

    def solve(self, ids_BT: Rows) -> Rows:
        """Add the two numbers."""
        n = self.difficulty
        powers = 10 ** np.arange(n)[::-1]
        total_B = ids_BT[:, :n] @ powers + ids_BT[:, n + 1 : 2 * n + 1] @ powers
        answers_BT = np.full(ids_BT.shape, IGNORED)
        answers_BT[:, 2 * n + 1 :] = total_B[:, None] // 10 ** np.arange(n + 1) % 10
        return answers_BT


@dataclass(frozen=True)
class Expressions(Task):
    """A full binary tree of +, - and * modulo 7, in postfix order: the value of every subtree at its operator."""

    name, kind, about = "tree", "reasoning", "Expressions modulo 7 in postfix order: the value of every subtree."
    counts, usual, hardest = "levels of the tree", 3, 8
    MODULUS = 7

    @property
    def words(self) -> tuple[str, ...]:
        """Numbers and operators."""
        return (*map(str, range(self.MODULUS)), "+", "-", "*")

    @property
    def longer(self) -> Expressions | None:
        """One level more: half as much again would be many times the tokens."""
        return Expressions(self.difficulty + 1) if self.difficulty < self.hardest else None

    def draw(self, rng: np.random.Generator, count: int) -> Rows:
        """Return random expressions of the one shape that a full tree has."""
        is_operator_T = np.array(_postfix(self.difficulty))
        numbers_BT, operators_BT = (rng.integers(high, size=(count, len(is_operator_T))) for high in (self.MODULUS, 3))
        return np.where(is_operator_T, self.MODULUS + operators_BT, numbers_BT)

    def solve(self, ids_BT: Rows) -> Rows:
        """Evaluate with a stack, which all problems share: they have one shape."""
        answers_BT = np.full(ids_BT.shape, IGNORED)
        stack: list[Rows] = []
        for at, is_operator in enumerate(ids_BT[0] >= self.MODULUS):
            if not is_operator:
                stack.append(ids_BT[:, at])
                continue
            right_B, left_B = stack.pop(), stack.pop()
            values_3B = np.stack((left_B + right_B, left_B - right_B, left_B * right_B)) % self.MODULUS
            stack.append(values_3B[ids_BT[:, at] - self.MODULUS, np.arange(len(ids_BT))])
            answers_BT[:, at] = stack[-1]
        return answers_BT


@cache
def _postfix(levels: int) -> tuple[bool, ...]:
    """Return which tokens of a full tree in postfix order are operators."""
    return (False,) if not levels else (*_postfix(levels - 1), *_postfix(levels - 1), True)


@dataclass(frozen=True)
class Reach(Task):
    """A random directed graph: which nodes can be reached from a start?"""

    name, kind, about = "reach", "reasoning", "A directed graph: which nodes can be reached from the start."
    counts, usual, hardest, scored = "nodes", 8, 16, "all"

    @property
    def words(self) -> tuple[str, ...]:
        """Nodes, a mark before the question, and the two answers."""
        return (*ascii_lowercase[: self.hardest], "?", "yes", "no")

    @property
    def edges(self) -> int:
        """Edges of a graph: with five for four nodes, about half of the nodes are reached."""
        return -(-self.difficulty * 5 // 4)

    def draw(self, rng: np.random.Generator, count: int) -> Rows:
        """Return the edges, the start, and every node as a question."""
        n = max(2, self.difficulty)
        tails_BM = rng.integers(n, size=(count, self.edges))
        heads_BM = (tails_BM + rng.integers(1, n, size=tails_BM.shape)) % n
        edges_BT = np.stack((tails_BM, heads_BM), axis=2).reshape(count, -1)
        start_B2 = np.stack((np.full(count, self.hardest), rng.integers(n, size=count)), axis=1)
        return np.concatenate((edges_BT, start_B2, np.tile(np.arange(n), (count, 1))), axis=1)

    def solve(self, ids_BT: Rows) -> Rows:
        """Follow the edges as often as there are nodes."""
        m, rows_B = 2 * self.edges, np.arange(len(ids_BT))
        reached_BN = np.zeros((len(ids_BT), self.hardest), np.bool_)
        reached_BN[rows_B, ids_BT[:, m + 1]] = True
        for _ in range(self.difficulty):
            for edge in range(0, m, 2):
                reached_BN[rows_B, ids_BT[:, edge + 1]] |= reached_BN[rows_B, ids_BT[:, edge]]
        answers_BT = np.full(ids_BT.shape, IGNORED)
        asked_BN = np.take_along_axis(reached_BN, ids_BT[:, m + 2 :], axis=1)
        answers_BT[:, m + 2 :] = np.where(asked_BN, self.hardest + 1, self.hardest + 2)
        return answers_BT


@dataclass(frozen=True)
class Recall(Task):
    """Associative recall: pairs of key and value, then every key in another order."""

    name, kind, about = "recall", "recall", "Pairs of key and value in the row: the value of each key asked again."
    counts, usual, hardest = "pairs", 8, 32
    VALUES = 16

    @property
    def words(self) -> tuple[str, ...]:
        """Keys, values, and a mark before the questions."""
        return (*(f"k{key}" for key in range(self.hardest)), *(f"v{value}" for value in range(self.VALUES)), "?")

    def draw(self, rng: np.random.Generator, count: int) -> Rows:
        """Return the pairs, the mark and the questions."""
        keys_BK = _shuffled(rng, count, self.hardest)[:, : self.difficulty]
        values_BK = self.hardest + rng.integers(self.VALUES, size=keys_BK.shape)
        pairs_BT = np.stack((keys_BK, values_BK), axis=2).reshape(count, -1)
        asked_BK = np.take_along_axis(keys_BK, _shuffled(rng, count, self.difficulty), axis=1)
        return np.concatenate((pairs_BT, np.full((count, 1), self.hardest + self.VALUES), asked_BK), axis=1)

    def solve(self, ids_BT: Rows) -> Rows:
        """Look the keys up."""
        pairs = 2 * self.difficulty
        value_BN = np.zeros((len(ids_BT), self.hardest), np.int64)
        np.put_along_axis(value_BN, ids_BT[:, 0:pairs:2], ids_BT[:, 1:pairs:2], axis=1)
        answers_BT = np.full(ids_BT.shape, IGNORED)
        answers_BT[:, pairs + 1 :] = np.take_along_axis(value_BN, ids_BT[:, pairs + 1 :], axis=1)
        return answers_BT


@dataclass(frozen=True)
class Facts(Task):
    """Random facts to remember: two symbols are the key, one of 256 symbols is its value, eight bits each.

    Nothing about a value follows from its key, so that only stored bits answer.
    """

    name, kind, about = "facts", "memory", "Random facts: two symbols to one of 256, eight bits each, to remember."
    counts, usual, hardest = "facts", 16384, 65_536
    SYMBOLS = 256

    @property
    def words(self) -> tuple[str, ...]:
        """The symbols, in hexadecimal."""
        return tuple(f"{symbol:02x}" for symbol in range(self.SYMBOLS))

    @property
    def longer(self) -> None:
        """More facts are other facts, which no model can know."""
        return

    @property
    def chance(self) -> float:
        """All values are equally likely."""
        return 1 / self.SYMBOLS

    @property
    def bits(self) -> float:
        """Bits of all facts."""
        return self.difficulty * math.log2(self.SYMBOLS)

    @cached_property
    def keys(self) -> Rows:
        """The keys of all facts, as one number each."""
        rng = np.random.default_rng((self.seed, 0))
        return rng.permutation(self.SYMBOLS**2)[: self.difficulty]

    @cached_property
    def values(self) -> Rows:
        """The value of every key."""
        return np.random.default_rng((self.seed, 1)).integers(self.SYMBOLS, size=self.SYMBOLS**2)

    def facts(self, indices: NDArray[np.int64]) -> Rows:
        """Return the facts at some indices as problems."""
        return np.stack(np.divmod(self.keys[indices], self.SYMBOLS), axis=1)

    def draw(self, rng: np.random.Generator, count: int) -> Rows:
        """Return random facts."""
        return self.facts(rng.integers(self.difficulty, size=count))

    def problems(self, rng: np.random.Generator, count: int, split: str = "train") -> tuple[Rows, Rows]:
        """Return random facts: both splits have the same."""
        if split == "longer":
            raise InputError(
                "task 'facts' has no longer problems: more facts are other facts; score its validation split"
            )
        ids_BT = self.draw(rng, count)
        return ids_BT, self.solve(ids_BT)

    def solve(self, ids_BT: Rows) -> Rows:
        """Look the facts up."""
        answers_BT = np.full(ids_BT.shape, IGNORED)
        answers_BT[:, 1] = self.values[ids_BT[:, 0] * self.SYMBOLS + ids_BT[:, 1]]
        return answers_BT


def _shuffled(rng: np.random.Generator, count: int, size: int) -> Rows:
    """Return ``count`` random orders of ``range(size)``."""
    return rng.permuted(np.tile(np.arange(size), (count, 1)), axis=1)


TASKS: dict[str, type[Task]] = {
    kind.name: kind for kind in (Z2, S3, S5, Hops, Addition, Expressions, Reach, Recall, Facts, Mixture)
}


def task_called(name: str, difficulty: int | None = None, seed: int = 0) -> Task:
    """Return a task by its name, at a difficulty or its usual one."""
    if name not in TASKS:
        raise InputError(f"task {shown(name)} is not known{nearest(name, TASKS)}; choose from {', '.join(TASKS)}")
    kind = TASKS[name]
    return kind(kind.usual if difficulty is None else difficulty, seed)
