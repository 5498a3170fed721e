"""How a model's weights are sharded over processes (FSDP2); the model knows nothing of it.

Each block of prelude and coda is gathered when it runs. The loop's blocks are one group that is gathered once for all
passes, forward and backward, and whose gradients are reduced once, when the first pass has given its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import DTensor, Shard

from loopscale.model import LoopedMoEForCausalLM

# Documented with fully_shard, which is the only way to reach it.


def shard(model: LoopedMoEForCausalLM, mesh: DeviceMesh, data: DeviceMesh, dtype: torch.dtype) -> None:
    """Shard the weights in place over all processes of ``mesh``; experts that are split already, over ``data`` alone.

    Weights are kept and gradients summed as they are, in fp32; ``dtype`` is what they are gathered and multiplied in.
    """
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    options: dict[str, Any] = {
        "mesh": mesh._flatten(),
        "mp_policy": policy if dtype != torch.float32 else MixedPrecisionPolicy(),
        "shard_placement_fn": partial(_placement, FSDPMeshInfo(data, shard_mesh_dim=0)),
    }
    base = model.model
    for block in (*base.prelude, *base.coda):
        fully_shard(block, **options)
    if loop := list(base.loop):
        fully_shard(loop, reshard_after_forward=False, **options)
        _OneReduction(model, loop)
    fully_shard(model, **options)
    model.register_forward_hook(_give_back)


def _placement(data: FSDPMeshInfo, weight: nn.Parameter) -> ShardPlacementResult | None:
    """Say how a weight is cut: experts that processes share are cut again along a dimension of their matrices."""
    if not isinstance(weight, DTensor):
        return None
    even = weight.shape[1] % data.shard_mesh_size == 0
    return ShardPlacementResult(Shard(1) if even else Shard(0), data)


def _give_back(model: nn.Module, inputs: Any, output: Any) -> None:
    """After a forward that no backward follows, free what backward would have freed."""
    if torch.is_grad_enabled():
        return
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


class _OneReduction:
    """Keeps the loop's weights gathered through the backward of all passes, and reduces their gradients in the last.

    FSDP would free the weights and reduce the gradients after the backward of every pass.
    """

    def __init__(self, model: nn.Module, loop: list[nn.Module]) -> None:
        assert isinstance(loop[0], FSDPModule)
        self._group = loop[0]  # the blocks of a group share their state
        self._passes = 0
        model.register_forward_pre_hook(self._begin)
        loop[-1].register_forward_hook(self._after_pass)

    def _begin(self, model: nn.Module, inputs: Any) -> None:
        self._passes = 0

    def _after_pass(self, block: nn.Module, inputs: Any, output: tuple[Tensor, Any]) -> None:
        if torch.is_grad_enabled() and output[0].requires_grad:
            # Backward runs from the last pass to the first, and always reaches the first that has a gradient.
            output[0].register_hook(partial(self._before_backward, self._passes == 0))  # type: ignore[no-untyped-call]
            self._passes += 1

    def _before_backward(self, last: bool, grad: Tensor) -> None:
        self._group.set_requires_gradient_sync(last, recurse=False)
        self._group.set_reshard_after_backward(last, recurse=False)
