"""Many processes that train one model: torch's process group, the mesh they form, and sums over them.

Every process works on its own rows of a batch. The weights are sharded over all processes (``sharding``); with
``[parallel] experts = n``, n processes next to each other hold the experts of each layer together (``experts``).
A single process that trains in bf16 is a world of one: the same path casts its weights.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from loopscale.errors import InputError
from loopscale.model import LoopedMoEForCausalLM
from loopscale.train.config import TrainConfig
from loopscale.train.parallel.expert_parallel import share_experts
from loopscale.train.parallel.fsdp import shard
from loopscale.train.parallel.process import Process, launched

# The public module has these without types.


PATIENCE = 1800.0
"""Seconds that the first process waits for the others."""


def meeting_place(rank: int, ranks: int) -> Store:
    """Return a store that the processes which are here now share, and no others.

    torchrun hands processes that it starts again the store of those that died. Their addresses are still in it, and a
    process that is quick enough would call a dead one. So the first process names a place that nobody used before.
    """
    if not launched():
        return HashStore()
    store: Store = next(rendezvous("env://"))[0]
    own = uuid4().hex
    if rank:
        store.set(f"asked/{rank}", own)
        place = store.get(f"answer/{own}").decode()
        store.set(f"heard/{place}/{rank}", "")
        return PrefixStore(place, store)
    _tell(store, own, set(range(1, ranks)))
    return PrefixStore(own, store)


def _tell(store: Store, place: str, waiting: set[int]) -> None:
    """Answer every process until it has heard; what a dead one asked is answered too, and does no harm."""
    end = time.monotonic() + PATIENCE
    while waiting:
        for rank in sorted(waiting):
            if store.check([f"asked/{rank}"]):
                store.set(f"answer/{store.get(f'asked/{rank}').decode()}", place)
        waiting -= {rank for rank in waiting if store.check([f"heard/{place}/{rank}"])}
        if time.monotonic() > end:
            raise InputError(f"process {min(waiting)} did not come within {PATIENCE / 60:g} minutes; start all of them")
        time.sleep(0.01)


DATA, EXPERTS = "data", "experts"


@dataclass(frozen=True)
class ParallelProcess(Process):
    """One of the processes that train a model together, which may be the only one."""

    group: int = 1
    """Processes that hold the experts together."""

    def prepare(self, model: LoopedMoEForCausalLM) -> LoopedMoEForCausalLM:
        """Return the model with its weights sharded; every process gives the same model."""
        experts = model.config.num_experts
        if experts % self.group:
            raise InputError(
                f"[parallel]: field 'experts' is {self.group}, which does not divide the {experts} experts of a layer; "
                "give a divisor of that"
            )
        mesh = self._mesh()
        if self.group > 1:
            share_experts(model, mesh[EXPERTS])
        shard(model.to(self.device), mesh, mesh[DATA], self.dtype)  # type: ignore[arg-type]
        return model

    def _mesh(self) -> DeviceMesh:
        shape = (self.ranks // self.group, self.group)
        return init_device_mesh(self.device.type, shape, mesh_dim_names=(DATA, EXPERTS))

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over all processes."""
        summed = values.clone()
        dist.all_reduce(summed)
        return summed

    @torch.no_grad()
    def clip(self, model: LoopedMoEForCausalLM, most: float) -> Tensor:
        """Scale the gradients down to the norm ``most`` and return the norm that they had.

        No weight is on two processes, so the squares of all shards add up to the square of the norm.
        """
        grads = [_local(weight.grad) for weight in model.parameters() if weight.grad is not None]
        norm = self.total(torch.stack(torch._foreach_norm(grads)).square().sum()).sqrt()
        if most:
            torch._foreach_mul_(grads, (most / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def whole(self, model: LoopedMoEForCausalLM) -> dict[str, Tensor]:
        """Return the whole model's tensors on the first process, gathered one by one; the others return nothing."""
        found: dict[str, Tensor] = {}
        for name, tensor in model.state_dict().items():
            gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.rank == 0:
                found[name] = gathered.detach().cpu()
        return found

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def join(config: TrainConfig, device: torch.device, dtype: torch.dtype) -> ParallelProcess:
    """Meet the other processes of this run; what they could not do together is refused before that."""
    ranks, rank = (int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])) if launched() else (1, 0)
    _check(config, ranks)
    backend = _backend(device)
    if device.type == "cuda":
        device = _own_gpu()
    dist.init_process_group(backend, store=meeting_place(rank, ranks), rank=rank, world_size=ranks)
    return ParallelProcess(device, rank, ranks, dtype, config.parallel.experts)


def _check(config: TrainConfig, ranks: int) -> None:
    batch, parts, group = config.run.batch, config.run.accumulate, config.parallel.experts
    if batch % (ranks * parts):
        each = f"{ranks} processes" + (f" in {parts} parts each ('accumulate')" if parts > 1 else "")
        raise InputError(
            f"[run]: field 'batch' is {batch}, which {each} cannot share equally; give a multiple of {ranks * parts}"
        )
    if ranks % group:
        raise InputError(
            f"[parallel]: field 'experts' is {group}, but {_processes(ranks)} cannot form groups of {group}; start a "
            f"multiple of {group} with torchrun, or set experts = 1"
        )


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _backend(device: torch.device) -> str:
    """Return what processes speak through: NCCL between GPUs, gloo between CPUs (and for a GPU run's small matters)."""
    needed = {"gloo": dist.is_available() and dist.is_gloo_available()}
    if device.type == "cuda":
        needed["nccl"] = dist.is_available() and dist.is_nccl_available()
    for name, there in needed.items():
        if not there:
            raise InputError(
                f"this build of torch has no {name!r}, which processes on {device.type} need to work together; install "
                "a torch that has it, or train with one process in fp32"
            )
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def _own_gpu() -> torch.device:
    place, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if place >= there:
        raise InputError(
            f"process {place} of this machine has no GPU of its own: there are {there}; start no more than that "
            "(torchrun --nproc-per-node)"
        )
    torch.cuda.set_device(place)
    return torch.device("cuda", place)
