"""A shuffled order of sequences as a function of seed, epoch and index: nothing is stored, and any part can be read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6


class Permutation:
    """A permutation of ``range(n)`` by a Feistel network, keyed by seed and epoch.

    The network permutes the smallest range of an even number of bits that holds n; a value outside ``range(n)`` goes
    through the network again until it is inside, so the result is still a permutation.
    """

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        self.n = n
        self._half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = np.random.SeedSequence((seed, epoch)).generate_state(ROUNDS, np.uint64)

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the elements at some indices of the permuted range."""
        values = self._network(indices.astype(np.uint64))
        outside = values >= self.n
        while outside.any():
            values[outside] = self._network(values[outside])
            outside = values >= self.n
        return values.astype(np.int64)

    def _network(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            # The finaliser of splitmix64: every bit of the result depends on every input bit.
            mixed = right ^ key
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
            left, right = right, left ^ (mixed & self._mask)
        return (left << self._half) | right


def shuffled(indices: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Return which of ``count`` sequences are at some indices of the endless sequence of epochs, each in its order."""
    epochs, within = np.divmod(indices, count)
    sequences = np.empty_like(indices)
    for epoch in np.unique(epochs):
        selected = epochs == epoch
        sequences[selected] = Permutation(count, seed, int(epoch))(within[selected])
    return sequences
