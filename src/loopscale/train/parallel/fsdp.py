"""Shard a model's weights over processes (FSDP2); the model itself does not know about it.

Blocks of prelude and coda are gathered one by one when they run. For the loop's blocks, which run R times, there are
three ways (``[parallel] reduce``), from the least communication to the least memory:

"step"   the loop is gathered once per part of a batch, and all gradients are reduced once per step; until then they are
         whole on every process, in fp32
"pass"   the loop is gathered once per part; the gradients of each block are reduced after every pass and stay sharded
"block"  every block is gathered and reduced at every pass, so that one or two are whole at a time
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

# Documented with fully_shard, which has no public way to name them.
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import DTensor, Shard

from loopscale.model import LoopedMoEForCausalLM
from loopscale.model.moe import Router
from loopscale.train.parallel.process import DATA, EXPERTS, REPLICAS


def shard(
    model: LoopedMoEForCausalLM,
    mesh: DeviceMesh,
    dtype: torch.dtype,
    reduce: str,
    offload: bool = False,
    stored: torch.dtype = torch.float32,
) -> None:
    """Shard the weights in place; experts that are divided already are sharded over ``data`` alone.

    Weights are ``stored`` in one type, and gathered and multiplied in ``dtype``; gradients are summed in fp32. Routers
    are stored and gathered in fp32, because a rounding there changes which expert is chosen. With ``offload`` the
    shards and their gradients are in the memory of the host.
    """
    if stored != torch.float32:
        _store_as(model, stored)
    whole, experts = _meshes(mesh)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    options: dict[str, Any] = {"mesh": whole, "shard_placement_fn": partial(_placement, whole.size(-1), experts)}
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    if dtype != torch.float32:
        for module in list(model.modules()):
            if isinstance(module, Router):
                fully_shard(module, reshard_after_forward=False, **options)
        options["mp_policy"] = policy
    base = model.model
    loop = list(base.loop)
    for block in (*base.prelude, *base.coda, *(loop if reduce == "block" else ())):
        fully_shard(block, **options)
    if reduce == "pass":
        for block in loop:
            fully_shard(block, reshard_after_forward=False, **options)
    elif loop and reduce == "step":
        fully_shard(loop, reshard_after_forward=False, **options)
    if loop and reduce != "block":
        model.loop_gathering = LoopGathering(model, loop, once=reduce == "step")  # type: ignore[assignment]
    if reduce != "step":
        for module in [module for block in loop for module in block.modules()]:
            if module in loop or isinstance(module, FSDPModule):
                PassGradients(module)
    fully_shard(model, **options)
    if stored != torch.float32:
        model.register_forward_pre_hook(_keep_gradients)  # after FSDP's own, which sets the types of its groups
    model.register_forward_hook(_reshard)


def _store_as(model: nn.Module, dtype: torch.dtype) -> None:
    """Store all weights of a meta model but its routers' in a type."""
    routers = {id(weight) for module in model.modules() if isinstance(module, Router) for weight in module.parameters()}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and id(weight) not in routers and weight.dtype == torch.float32:
                module._parameters[name] = nn.Parameter(weight.to(dtype), weight.requires_grad)
    model.tie_weights()  # type: ignore[operator]


def _keep_gradients(model: nn.Module, inputs: Any) -> None:
    """Keep sharded gradients in the fp32 that they are reduced in: FSDP would round them to the type of the weights."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            if group is not None:
                group._orig_dtype = torch.float32
                for weight in group.fsdp_params:
                    weight.sharded_param.grad_dtype = torch.float32


def _meshes(mesh: DeviceMesh) -> tuple[DeviceMesh, FSDPMeshInfo]:
    """Return the mesh that most weights are sharded over, and that of experts which are divided already."""
    shards = mesh[DATA, EXPERTS]._flatten("shards")
    if mesh[REPLICAS].size() == 1:
        return shards, FSDPMeshInfo(mesh[DATA], shard_mesh_dim=0)
    experts = HSDPMeshInfo(mesh[REPLICAS, DATA], shard_mesh_dim=1, replicate_mesh_dim=0)
    return DeviceMesh._concatenate([mesh[REPLICAS], shards]), experts


def _placement(shards: int, data: FSDPMeshInfo, weight: nn.Parameter) -> ShardPlacementResult | Shard | None:
    """Return how a weight is sharded: by default along its first dimension.

    Experts that the processes cannot share equally are sharded along a dimension of their matrices: along the first,
    they would be padded to a multiple of the processes. Divided experts are sharded again along that dimension.
    """
    if not isinstance(weight, DTensor):
        padded = weight.dim() == 3 and weight.shape[0] % shards != 0
        return Shard(1) if padded and weight.shape[1] % shards == 0 else None
    even = weight.shape[1] % data.shard_mesh_size == 0
    return ShardPlacementResult(Shard(1) if even else Shard(0), data)


def _reshard(model: nn.Module, inputs: Any, output: Any) -> None:
    """After a forward without backward, free what backward would have freed."""
    if torch.is_grad_enabled():
        return
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def defer_reduction(model: nn.Module, last: bool, reduce: str) -> None:
    """Prepare the backward of one part of a batch: only the ``last`` one communicates what can wait."""
    assert isinstance(model, FSDPModule)
    if reduce == "step":
        model.set_requires_gradient_sync(last)
        gathering = getattr(model, "loop_gathering", None)
        if gathering is not None:
            gathering.last_part = last
    else:
        model.set_requires_all_reduce(last)  # between replicas; within one, gradients stay sharded


class LoopGathering:
    """Keeps the loop's weights gathered through the backward of all passes; ``once`` reduces gradients in the last.

    FSDP would free the weights and reduce the gradients after the backward of every pass.
    """

    def __init__(self, model: nn.Module, loop: list[nn.Module], once: bool) -> None:
        # Blocks that are sharded as one group share their state.
        self._groups = [block for block in loop[: 1 if once else None] if isinstance(block, FSDPModule)]
        self._passes, self._once = 0, once
        self.last_part = True
        model.register_forward_pre_hook(self._begin)
        loop[-1].register_forward_hook(self._after_pass)

    def _begin(self, model: nn.Module, inputs: Any) -> None:
        self._passes = 0

    def _after_pass(self, block: nn.Module, inputs: Any, output: tuple[Tensor, Any]) -> None:
        if torch.is_grad_enabled() and output[0].requires_grad:
            # Backward runs from the last pass to the first, and always reaches the first that has a gradient.
            output[0].register_hook(partial(self._before_backward, self._passes == 0))  # type: ignore[no-untyped-call]
            self._passes += 1

    def _before_backward(self, first_pass: bool, grad: Tensor) -> None:
        for group in self._groups:
            if self._once:
                group.set_requires_gradient_sync(first_pass and self.last_part, recurse=False)
            group.set_reshard_after_backward(first_pass, recurse=False)


class _PassGradient(torch.autograd.Function):
    """The identity on a weight; backward adds the gradient to the weight at once."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        """Return another view of the weight."""
        ctx.weight = weight
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        """Add the gradient to the weight, and pass none on."""
        weight = ctx.weight
        weight.grad = grad if weight.grad is None else weight.grad + grad


class PassGradients:
    """Lets the weights of a module receive the gradient of each pass as soon as it is computed.

    Autograd adds up the gradients of all uses of a weight and delivers the sum. Weights that R passes use would keep a
    whole gradient on every process until the backward of the first pass, and FSDP would have nothing to reduce before.
    Each pass therefore uses its own view of the weights.
    """

    def __init__(self, module: nn.Module) -> None:
        nested = {
            inner
            for other in module.modules()
            if other is not module and isinstance(other, FSDPModule)
            for inner in other.modules()
        }
        self._owners = [inner for inner in module.modules() if inner not in nested and inner._parameters]
        self._kept: list[tuple[nn.Module, str, Tensor, Tensor]] = []
        module.register_forward_pre_hook(self._begin)  # after FSDP has gathered the weights
        module.register_forward_hook(self._end, always_call=True)

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def _begin(self, module: nn.Module, inputs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        for owner in self._owners:
            for name, weight in owner._parameters.items():
                if weight is not None and weight.requires_grad:
                    view = _PassGradient.apply(weight)  # type: ignore[no-untyped-call]
                    owner._parameters[name] = view
                    self._kept.append((owner, name, view, weight))

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def _end(self, module: nn.Module, inputs: Any, output: Any) -> None:
        for owner, name, view, weight in self._kept:
            if owner._parameters[name] is view:  # otherwise FSDP has put the sharded weight back
                owner._parameters[name] = weight  # type: ignore[assignment]
        self._kept.clear()
