"""Counts memory and communication of operations on fake tensors, which have shapes and no data."""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks the bytes of all live storages by kind, and the bytes that collectives move."""

    def __init__(self, vocabulary: int, elsewhere: tuple[str, ...] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kind = "weights"
        self._elsewhere = elsewhere
        self.live: Counter[str] = Counter()
        self.peak, self.at_peak = 0, Counter[str]()
        self.communication: dict[str, float] = defaultdict(float)
        self._vocabulary = vocabulary
        self._known: dict[int, tuple[str, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":
            self._communicate(func, args)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._see(leaf, func.namespace)
        return result

    def _see(self, tensor: Tensor, namespace: str) -> None:
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        if storage._cdata not in self._known:
            self._add(storage, self._kind_of(local, namespace))

    def _kind_of(self, tensor: Tensor, namespace: str) -> str:
        if self.kind != "step":
            return self.kind
        if namespace == "fsdp":
            return "gathered weights"
        if tensor.dim() and self._vocabulary in tensor.shape and tensor.shape[0] != self._vocabulary:
            return "logits"
        return "activations" if torch._C._current_graph_task_id() == -1 else "gradients"

    def _add(self, storage: torch.UntypedStorage, kind: str) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known[key] = (kind, size)
        self.live[kind] += size
        weakref.finalize(storage, self._free, key).atexit = False
        self._note_peak()

    def _free(self, key: int) -> None:
        kind, size = self._known.pop(key, ("", 0))
        self.live[kind] -= size

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Record that a storage has another size: this is how FSDP frees and allocates gathered weights."""
        if storage._cdata in self._known:
            kind, size = self._known[storage._cdata]
            self.live[kind] -= size
        kind = "gathered weights"
        self._known[storage._cdata] = (kind, storage.nbytes())
        self.live[kind] += storage.nbytes()
        self._note_peak()

    def rename(self, tensor: Tensor, kind: str) -> None:
        """Count a tensor as another kind of memory from now on."""
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        key = local.untyped_storage()._cdata
        if key in self._known:
            before, size = self._known[key]
            self.live[before] -= size
            self.live[kind] += size
            self._known[key] = (kind, size)

    def _note_peak(self) -> None:
        total = sum(size for kind, size in self.live.items() if kind not in self._elsewhere)
        if total > self.peak:
            self.peak, self.at_peak = total, self.live.copy()

    def _communicate(self, func: Any, args: Any) -> None:
        name = func._schema.name.split("::")[1].strip("_")
        groups = [arg for arg in args if isinstance(arg, torch.ScriptObject)]
        size = dist.ProcessGroup.unbox(groups[0]).size() if groups else 1
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        largest = max((tensor.numel() * tensor.element_size() for tensor in tensors), default=0)
        factor = (2 if name.startswith("allreduce") else 1) * (size - 1) / size
        self.communication[name] += largest * factor


@contextmanager
def watched_storages(meter: Meter) -> Iterator[None]:
    """Tell the meter of every storage that is resized within the block: no operation announces it."""
    original = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        meter.resized(storage)
        return result

    torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]
