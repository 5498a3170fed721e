"""A pseudo-random order of n things that takes no memory: place i is computed, not looked up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6


class Permutation:
    """A permutation of ``range(n)`` by a Feistel network, keyed by seed and epoch.

    The network permutes the smallest range of an even number of bits that holds n; a value that falls outside n is
    sent through again until it falls inside, which keeps the whole a permutation.
    """

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        self.n = n
        self._half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = np.random.SeedSequence((seed, epoch)).generate_state(ROUNDS, np.uint64)

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what stands at each of some places."""
        values = self._network(places.astype(np.uint64))
        outside = values >= self.n
        while outside.any():
            values[outside] = self._network(values[outside])
            outside = values >= self.n
        return values.astype(np.int64)

    def _network(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (_scrambled(right ^ key) & self._mask)
        return (left << self._half) | right


def _scrambled(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finaliser of splitmix64: every bit of the result hangs on every bit given."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
