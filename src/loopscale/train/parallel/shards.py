"""Tensors that are sharded over processes."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds, without its gradient; it shares the memory."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
