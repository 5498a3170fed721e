"""Batches from a token store: a pure function of seed and step, so that a resumed run sees the same batches.

The documents of a split, each followed by the end token, form one stream, and a sequence is a window of it. The model
predicts each token from those before it in the window, so the first token of a window is not a target; neighbouring
windows share one token, which makes every token a target exactly once in an epoch. The first token of a document is
never a target, because the tokens before it belong to an unrelated document; the end token is one.

Sequences are packed: a window may hold several documents. ``Batch.positions`` restart with each of them; passed to the
model as ``position_ids``, they keep attention within a document, at the cost of an explicit mask for batches that
contain a boundary. Without them attention covers the whole window, as in most pretraining.

Shapes: B rows, T tokens of the context.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loopscale.core.errors import InputError
from loopscale.core.quantities import counted
from loopscale.train.data.permutation import Permutation, shuffled
from loopscale.train.data.token_store import MixedStore, TokenStore

IGNORED = -100
"""The label of tokens that are not targets."""
CYCLE = 1000
"""Sequences in which a mixture has its exact shares."""


@dataclass(frozen=True)
class Batch:
    """Some rows of a step."""

    ids: NDArray[np.int64]
    """(B, T)."""
    labels: NDArray[np.int64]
    """(B, T), aligned with ``ids`` as Hugging Face has it: the model shifts them. -100 is no target."""
    starts: NDArray[np.bool_]
    """(B, T): where a document begins, or a window continues one."""

    @property
    def targets(self) -> int:
        """How many tokens are predicted; a mean over several batches weighs each by this."""
        return int(np.count_nonzero(self.labels != IGNORED))

    def split(self, parts: int) -> list[Batch]:
        """Return so many parts of equal size, which must divide the rows."""
        size = len(self.ids) // parts
        rows = [slice(start, start + size) for start in range(0, len(self.ids), size)]
        return [Batch(self.ids[part], self.labels[part], self.starts[part]) for part in rows]

    @property
    def positions(self) -> NDArray[np.int64]:
        """(B, T): the index of each token in its document, counted from the start of the window at the earliest."""
        indices = np.arange(self.ids.shape[1])
        return indices - np.maximum.accumulate(np.where(self.starts, indices, 0), axis=1)


def rows_of_rank(size: int, rank: int, ranks: int) -> NDArray[np.int64]:
    """Return which rows of a batch a rank computes; those of the ranks, one after the other, are the whole batch."""
    if size % ranks or not 0 <= rank < ranks:
        raise InputError(
            f"a batch of {size} sequences cannot be shared by {ranks} processes in equal parts; choose a multiple"
        )
    share = size // ranks
    return np.arange(rank * share, (rank + 1) * share)


class Batches:
    """The sequences of one split in a fixed order.

    Shuffled, the epochs follow each other without a gap and each has its own order. Unshuffled, for evaluation, every
    epoch is the same, its last batch is filled up with rows that have no targets, and a split of less than one sequence
    is one shorter sequence.
    """

    def __init__(
        self, store: TokenStore, *, split: str, batch: int, context: int, seed: int, shuffle: bool = True
    ) -> None:
        if not shuffle:  # what is held out of a small text is evaluated in shorter sequences
            context = min(context, max(2, store.tokens.get(split, context)))
        _check(store, split, batch, context, seed)
        self.store, self.split, self.size, self.context = store, split, batch, context
        self.seed, self.shuffle = seed, shuffle
        self.tokens = store.tokens[split]
        self.windows = -(-(self.tokens - 1) // (context - 1))
        self.steps_per_epoch = -(-self.windows // batch)
        self._maps = store.maps(split)
        self._ends = np.cumsum([shard.size for shard in self._maps])

    def batch(self, step: int, *, rank: int = 0, ranks: int = 1) -> Batch:
        """Return the rows of a step that belong to a rank."""
        rows = rows_of_rank(self.size, rank, ranks)
        if self.shuffle:
            return self._rows(shuffled(step * self.size + rows, self.windows, self.seed))
        return self._rows(step % self.steps_per_epoch * self.size + rows)

    def rows(self, indices: NDArray[np.int64]) -> Batch:
        """Return the sequences at some indices of the endless sequence of epochs."""
        return self._rows(shuffled(indices, self.windows, self.seed) if self.shuffle else indices % self.windows)

    def _rows(self, windows: NDArray[np.int64]) -> Batch:
        starts = windows * (self.context - 1)
        # The last window starts earlier, so that it is as long as the others; tokens that it repeats are not targets.
        firsts = np.minimum(starts, self.tokens - self.context)
        ids = np.stack([self._read(int(first)) for first in firsts]).astype(np.int64)
        begins = np.zeros(ids.shape, np.bool_)
        begins[:, 0] = True
        begins[:, 1:] = ids[:, :-1] == self.store.end
        repeated = np.arange(self.context) <= (starts - firsts)[:, None]
        return Batch(ids, np.where(begins | repeated, IGNORED, ids), begins)

    def _read(self, first: int) -> NDArray[np.uint16]:
        """Return one window; it may reach over several shards."""
        shard = int(np.searchsorted(self._ends, first, side="right"))
        within = first - int(self._ends[shard]) + self._maps[shard].size
        parts = [self._maps[shard][within : within + self.context]]
        while (short := self.context - sum(part.size for part in parts)) > 0:
            shard += 1
            parts.append(self._maps[shard][:short])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class MixedBatches:
    """The sequences of a mixture: of every ``CYCLE`` each source has its share, in an order of the seed.

    Which source a sequence comes from, and which of its sequences it is, is a function of its index alone, so that a
    run resumes exactly, on any number of processes.
    """

    def __init__(
        self, mixture: MixedStore, *, split: str, batch: int, context: int, seed: int, shuffle: bool = True
    ) -> None:
        options = {"split": split, "batch": batch, "context": context, "seed": seed, "shuffle": shuffle}
        self._parts = [Batches(store, **options) for store in mixture.parts.values()]  # type: ignore[arg-type]
        self.size, self.shuffle = batch, shuffle
        counts = _shares([mixture.weights[name] for name in mixture.parts])
        self._counts = np.array(counts)
        order = Permutation(CYCLE, seed, 0)(np.arange(CYCLE))
        self._source = np.repeat(np.arange(len(counts)), counts)[order]
        self._earlier = np.zeros(CYCLE, np.int64)
        """How many sequences of the same source come before each slot of a cycle."""
        for source in range(len(counts)):
            slots = self._source == source
            self._earlier[slots] = np.arange(slots.sum())
        # An epoch ends, for validation, before any source repeats.
        rounds = min(part.windows * CYCLE // count for part, count in zip(self._parts, counts, strict=True) if count)
        self.steps_per_epoch = max(1, rounds // batch)

    def batch(self, step: int, *, rank: int = 0, ranks: int = 1) -> Batch:
        """Return the rows of a step that belong to a rank."""
        step = step if self.shuffle else step % self.steps_per_epoch
        indices = step * self.size + rows_of_rank(self.size, rank, ranks)
        rows = [self._parts[source].rows(np.array([index])) for source, index in zip(*self._find(indices), strict=True)]
        columns = [[row.ids for row in rows], [row.labels for row in rows], [row.starts for row in rows]]
        ids, labels, starts = (np.concatenate(column) for column in columns)
        return Batch(ids, labels, starts)

    def _find(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source of each sequence of the mixture, and its index in the source."""
        cycles, slots = np.divmod(indices, CYCLE)
        sources = self._source[slots]
        return sources, cycles * self._counts[sources] + self._earlier[slots]


def _shares(weights: list[float]) -> list[int]:
    """Return whole numbers in the proportion of weights that add up to ``CYCLE``, by largest remainders."""
    exact = np.array(weights) / sum(weights) * CYCLE
    counts = np.floor(exact).astype(int)
    for source in np.argsort(counts - exact, kind="stable")[: CYCLE - counts.sum()]:
        counts[source] += 1
    return [int(count) for count in counts]


def _check(store: TokenStore, split: str, batch: int, context: int, seed: int) -> None:
    if split not in store.tokens:
        raise InputError(f"there is no split {split!r}; the splits are {', '.join(store.tokens)}")
    if batch < 1 or context < 2 or seed < 0:
        raise InputError(f"batch is {batch}, context {context} and seed {seed}; they should be at least 1, 2 and 0")
    tokens = store.tokens[split]
    if tokens < context:
        remedy = "give more text or a shorter [data] context"
        if split == "validation":
            fraction = store.source.get("validation", "unknown")
            remedy = f"raise [data] validation (now {fraction}), give more text, or a shorter [data] context"
        files = [str(name) for name, *_ in store.source.get("files") or ()]
        text = str(store.source.get("dataset") or store.folder)
        if files:
            text = files[0] if len(files) == 1 else f"{files[0]} and others"
        raise InputError(
            f"{text}: the {split} split has {counted(tokens, 'token')} in "
            f"{counted(store.documents[split], 'document')}, less than one sequence of {context}; {remedy}"
        )
