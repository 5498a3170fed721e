"""Initial weights: every block of rows of every parameter has its own seed.

A process therefore draws its own shard and no more, and the weights are the same for any number of processes. Models
are built on the meta device, sharded there, and get memory for their shards only.

Shapes of shards are those of the local tensors; ``offset`` is where a shard starts in the whole parameter.
"""

from __future__ import annotations

import math
from hashlib import blake2b

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM

RESIDUAL = ("o_proj.weight", "down_proj.weight", "down_proj")
"""Names of the matrices whose output is added to the residual stream."""
BLOCK = 1 << 20
"""Values drawn from one seed, at most, unless one row has more."""


def meta_model(config: LoopedMoEConfig) -> LoopedMoEForCausalLM:
    """Return a model without memory for its weights."""
    with torch.device("meta"):
        return LoopedMoEForCausalLM(config)


def materialise(model: LoopedMoEForCausalLM, device: torch.device, offload: bool = False) -> LoopedMoEForCausalLM:
    """Give a meta model, sharded or not, memory for its own weights on a device; the values are undefined.

    With ``offload`` the weights are in the memory of the host, and the buffers on the device.
    """
    model.to_empty(device=torch.device("cpu") if offload else device)
    if offload:
        for module in model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)
    model.tie_weights()
    return model


@torch.no_grad()
def initialise(model: LoopedMoEForCausalLM, seed: int, residual_init: str) -> LoopedMoEForCausalLM:
    """Draw all weights; models of equal shape get the same draws from a seed at every recurrence.

    What a layer adds to the residual stream is scaled by 1/sqrt(2 * depth), where the depth counts every pass; with
    ``residual_init`` "zero" it starts at zero.
    """
    config = model.config
    depth = config.prelude_layers + config.recurrence * config.loop_layers + config.coda_layers
    factor = 0.0 if residual_init == "zero" else 1 / math.sqrt(2 * depth)
    constants = _constants(model)
    for name, weight in model.named_parameters():
        local, offset = _shard(weight)
        if name in constants:
            local.fill_(constants[name])
        elif weight.dim() < 2:
            local.fill_(0.0 if name.endswith("proj.bias") else 1.0)  # otherwise the gain of a norm
        else:
            std = config.initializer_range * (factor if name.endswith(RESIDUAL) else 1.0)
            _draw(local, tuple(weight.shape), offset, f"{seed}/{name}", std)
            if config.pad_token_id is not None and name.endswith("embed_tokens.weight"):
                row = config.pad_token_id - offset[0]
                if 0 <= row < len(local):
                    local[row].zero_()
    for buffer in model.buffers():
        buffer.zero_()
    return model


def _constants(model: LoopedMoEForCausalLM) -> dict[str, float]:
    """Return the parameters that start at a constant, by name: their modules list them."""
    return {
        f"{prefix}.{name}": value
        for prefix, module in model.named_modules()
        for name, value in getattr(module, "CONSTANTS", {}).items()
    }


def _shard(weight: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Return the part of a parameter that this process holds, and where it starts in the whole."""
    if not isinstance(weight, DTensor):
        return weight, (0,) * weight.dim()
    _, offset = compute_local_shape_and_global_offset(weight.shape, weight.device_mesh, weight.placements)
    return weight.to_local(), tuple(offset)


def own_part(weight: Tensor) -> tuple[Tensor, tuple[slice, ...]]:
    """Return the part of a parameter that this process holds, and the slices of the whole that it is."""
    local, offset = _shard(weight)
    return local, tuple(slice(start, start + size) for start, size in zip(offset, local.shape, strict=True))


def _draw(local: Tensor, shape: tuple[int, ...], offset: tuple[int, ...], name: str, std: float) -> None:
    """Fill a shard from the blocks of rows that it overlaps."""
    if not local.numel():
        return
    rows = max(1, BLOCK // math.prod(shape[1:]))
    first, last = offset[0], offset[0] + len(local)
    inner = tuple(slice(start, start + size) for start, size in zip(offset[1:], local.shape[1:], strict=True))
    for block in range(first // rows, -(-last // rows)):
        start, stop = block * rows, min((block + 1) * rows, shape[0])
        seed = int.from_bytes(blake2b(f"{name}/{block}".encode(), digest_size=8).digest(), "big") >> 1
        # Drawn on the CPU, so that a GPU gets the same weights.
        draws = torch.empty(stop - start, *shape[1:]).normal_(0, std, generator=torch.Generator().manual_seed(seed))
        low, high = max(first, start), min(last, stop)
        local[low - first : high - first] = draws[(slice(low - start, high - start), *inner)]
