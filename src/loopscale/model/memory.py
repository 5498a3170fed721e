"""Large buffers of a training step, used again at the next one.

PyTorch keeps no freed memory on the CPU: it goes back to the system, which hands it out again page by page, zeroed. For
the experts' activations and gradients that took up to a fifth of a training step.
"""

from __future__ import annotations

import threading
from math import prod

import torch
from torch import Tensor, UntypedStorage

SMALLEST = 1 << 20
"""Below this many bytes the C library keeps freed memory itself."""
PATIENCE = 8
"""How many rounds through all buffers one may lie unused before it goes back to the system."""


class Pool:
    """Storages that are handed out again once no tensor refers to them.

    A buffer's references tell whether it is free, not its user: a gradient that someone keeps, or a graph that is
    walked twice, keeps its memory.
    """

    def __init__(self) -> None:
        self._uses: dict[UntypedStorage, int] = {}
        self._clock = 0
        self._lock = threading.Lock()

    def empty(self, like: Tensor, *shape: int) -> Tensor:
        """Return an uninitialised tensor of the dtype and device of ``like``."""
        size = prod(shape) * like.element_size()
        if size < SMALLEST or like.device.type != "cpu":
            return like.new_empty(shape)
        step = 1 << (size.bit_length() - 3)  # similar sizes share buffers: experts get other row counts at each step
        with self._lock:
            storage = self._take(-(-size // step) * step)
            strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
            return like.new_empty(0).set_(storage, 0, shape, strides)  # type: ignore[call-overload, no-any-return]

    def _take(self, size: int) -> UntypedStorage:
        self._clock += 1
        free = [storage for storage in self._uses if torch._C._storage_Use_Count(storage._cdata) == 1]  # type: ignore[attr-defined]
        found = next((storage for storage in free if storage.nbytes() == size), None)
        for storage in free:
            if self._clock - self._uses[storage] > PATIENCE * len(self._uses):
                del self._uses[storage]
        found = UntypedStorage(size) if found is None else found
        self._uses[found] = self._clock
        return found


_POOL = Pool()


def scratch(like: Tensor, *shape: int) -> Tensor:
    """Return an uninitialised tensor, from memory that was used before where there is some."""
    return _POOL.empty(like, *shape)
