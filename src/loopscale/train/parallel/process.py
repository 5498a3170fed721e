"""The process that trains: alone, or one of many that train one model together.

Many processes each work on their own rows of a batch. The weights are sharded over all of them (``fsdp``); with
``[parallel] experts = n``, each group of n neighbouring processes holds the experts of a layer together
(``expert_parallel``). A single process that trains in bf16 is a world of one: the same path casts its weights.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch._C._distributed_c10d import HashStore, PrefixStore, Store  # the public module has these without types
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from loopscale.core.errors import InputError, RendezvousError
from loopscale.core.quantities import counted
from loopscale.model import LoopedMoEForCausalLM
from loopscale.train.auto import precision
from loopscale.train.config import TrainConfig
from loopscale.train.init import materialise
from loopscale.train.parallel.launcher import launched, launched_rank, launched_ranks
from loopscale.train.parallel.shards import local_part

JOIN_TIMEOUT = 1800.0
"""Seconds that rank 0 waits for the other ranks."""
REPLICAS, DATA, EXPERTS = "replicas", "data", "experts"


@dataclass(frozen=True)
class Process:
    """A single process that trains alone."""

    device: torch.device
    rank: int = 0
    ranks: int = 1
    dtype: torch.dtype = torch.float32
    """The type that weights are multiplied in."""

    def prepare(self, model: LoopedMoEForCausalLM) -> LoopedMoEForCausalLM:
        """Return a meta model as this process trains it, with memory for its weights."""
        return materialise(model, self.device)

    def put(self, array: NDArray[Any]) -> Tensor:
        """Return an array as a tensor on the device; the copy to a GPU does not make the host wait."""
        tensor = torch.from_numpy(array)
        if self.device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def defer_reduction(self, model: LoopedMoEForCausalLM, last: bool) -> None:
        """Prepare the backward of one part of a batch."""

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over all processes."""
        return values

    def clip(self, model: LoopedMoEForCausalLM, most: float) -> Tensor:
        """Scale the gradients down to the norm ``most`` and return the norm that they had."""
        return torch.nn.utils.clip_grad_norm_(model.parameters(), most if most else float("inf"))

    def full_state_dict(self, model: LoopedMoEForCausalLM) -> dict[str, Tensor]:
        """Return all tensors of the model, unsharded, on rank 0."""
        return {name: tensor.detach() for name, tensor in model.state_dict().items()}

    def any(self, flag: bool) -> bool:
        """Tell whether ``flag`` is true on at least one process."""
        return flag

    def close(self) -> None:
        """Leave the process group, if there is one."""


@dataclass(frozen=True)
class ParallelProcess(Process):
    """One rank of a process group, which may have only one member."""

    group: int = 1
    """Number of neighbouring ranks that hold the experts of a layer together."""
    replicas: int = 1
    """Number of copies of the sharded model."""
    reduce: str = "step"
    """When gradients of the loop are reduced, as in ``[parallel] reduce``."""
    offload: bool = False
    """Whether shards are kept in the memory of the host, as in ``[parallel] offload``."""
    stored: torch.dtype = torch.float32
    """The type that weights are stored in; routers are always fp32."""

    @classmethod
    def of(
        cls, config: TrainConfig, device: torch.device, rank: int, ranks: int, dtype: torch.dtype, **more: Any
    ) -> Self:
        """Return a process that shares the work as the settings say."""
        parallel = config.parallel
        return cls(
            device,
            rank,
            ranks,
            dtype,
            group=parallel.experts,
            replicas=parallel.replicas,
            reduce=parallel.reduce,
            offload=parallel.offload,
            stored=torch.bfloat16 if config.run.precision == "bf16-weights" else torch.float32,
            **more,
        )

    def prepare(self, model: LoopedMoEForCausalLM) -> LoopedMoEForCausalLM:
        """Return a meta model with its weights sharded, and memory for this rank's shards."""
        self.check_experts(model.config.num_experts)
        return materialise(self.sharded(model, self.mesh()), self.device, self.offload)

    def check_experts(self, experts: int) -> None:
        """Refuse a number of experts that the group cannot divide equally."""
        if experts % self.group:
            raise InputError(
                f"[parallel]: field 'experts' is {self.group}, which does not divide the {experts} experts of a layer; "
                f"give a divisor of {experts}"
            )

    def sharded(self, model: LoopedMoEForCausalLM, mesh: DeviceMesh) -> LoopedMoEForCausalLM:
        """Return a meta model with its weights sharded over ``mesh``."""
        from loopscale.train.parallel.expert_parallel import share_experts
        from loopscale.train.parallel.fsdp import shard

        if self.group > 1:
            share_experts(model, mesh[EXPERTS])
        shard(model, mesh, self.dtype, self.reduce, self.offload, self.stored)
        return model

    def mesh(self) -> DeviceMesh:
        """Return the processes as replicas x data x experts."""
        shape = (self.replicas, self.ranks // self.group // self.replicas, self.group)
        return init_device_mesh(self.device.type, shape, mesh_dim_names=(REPLICAS, DATA, EXPERTS))

    def defer_reduction(self, model: LoopedMoEForCausalLM, last: bool) -> None:
        """Prepare the backward of one part of a batch: only the last one communicates what can wait."""
        from loopscale.train.parallel.fsdp import defer_reduction

        defer_reduction(model, last, self.reduce)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over all processes."""
        summed = values.clone()
        dist.all_reduce(summed)
        return summed

    @torch.no_grad()
    def clip(self, model: LoopedMoEForCausalLM, most: float) -> Tensor:
        """Scale the gradients down to the norm ``most`` and return the norm that they had.

        No weight is on two processes of a replica, so the squares of its shards add up to the square of the norm.
        """
        grads = [local_part(weight.grad) for weight in model.parameters() if weight.grad is not None]
        norm = (self.total(torch.stack(torch._foreach_norm(grads)).square().sum()) / self.replicas).sqrt()
        if most:
            torch._foreach_mul_(grads, (most / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def full_state_dict(self, model: LoopedMoEForCausalLM) -> dict[str, Tensor]:
        """Return all tensors of the model on rank 0, gathered one by one; the other ranks return nothing."""
        tensors: dict[str, Tensor] = {}
        for name, tensor in model.state_dict().items():
            gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.rank == 0:
                tensors[name] = gathered.detach().cpu()
        return tensors

    def any(self, flag: bool) -> bool:
        """Tell whether ``flag`` is true on at least one process."""
        if self.ranks == 1:
            return flag
        # A tensor on the CPU: gloo sums it, so that a GPU is not waited for.
        return bool(self.total(torch.tensor(float(flag))))

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()


def this_process(config: TrainConfig) -> Process:
    """Return the process that runs now: one of many if torchrun started it."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = precision(config.run.precision, device)
    alone = config.parallel.experts == 1 and not config.parallel.offload
    if not launched() and dtype == torch.float32 and alone:
        return Process(device)
    return join(config, device, dtype)


def join(config: TrainConfig, device: torch.device, dtype: torch.dtype) -> ParallelProcess:
    """Join the process group of this run; impossible settings are refused before that."""
    ranks, rank = launched_ranks(), launched_rank()
    check_shares(config, ranks)
    backend = _backend(device)
    if device.type == "cuda":
        device = _own_gpu()
    dist.init_process_group(backend, store=rendezvous_store(rank, ranks), rank=rank, world_size=ranks)
    return ParallelProcess.of(config, device, rank, ranks, dtype)


def rendezvous_store(rank: int, ranks: int) -> Store:
    """Return a key-value store that only the ranks of this start share.

    When torchrun restarts processes, it gives them the store of those that ended. Their addresses are still in it, and
    a fast process would connect to one that no longer runs. So rank 0 chooses a key prefix that was never used before.
    """
    if not launched():
        return HashStore()
    store: Store = next(rendezvous("env://"))[0]
    token = uuid4().hex
    if rank:
        store.set(f"asked/{rank}", token)
        prefix = store.get(f"answer/{token}").decode()
        store.set(f"heard/{prefix}/{rank}", "")
        return PrefixStore(prefix, store)
    _announce(store, token, set(range(1, ranks)))
    return PrefixStore(token, store)


def _announce(store: Store, prefix: str, waiting: set[int]) -> None:
    """Send every rank the prefix until it has confirmed; answering a process that has ended does no harm."""
    end = time.monotonic() + JOIN_TIMEOUT
    while waiting:
        for rank in sorted(waiting):
            if store.check([f"asked/{rank}"]):
                store.set(f"answer/{store.get(f'asked/{rank}').decode()}", prefix)
        waiting -= {rank for rank in waiting if store.check([f"heard/{prefix}/{rank}"])}
        if time.monotonic() > end:
            raise RendezvousError(
                f"rank {min(waiting)} did not join within {JOIN_TIMEOUT / 60:g} minutes; start all ranks"
            )
        time.sleep(0.01)


def check_shares(config: TrainConfig, ranks: int, noun: str = "process") -> None:
    """Refuse a batch, expert groups or replicas that so many processes, or GPUs of an estimate, cannot share."""
    batch, parts = config.run.batch, config.run.parts
    group, replicas = config.parallel.experts, config.parallel.replicas
    start = "start a multiple of {} with torchrun" if noun == "process" else "take a multiple of {}"
    if ranks < 1 or batch % (ranks * parts):
        shares = counted(ranks, noun) + (f" in {parts} parts each ('accumulate')" if parts > 1 else "")
        raise InputError(
            f"[run]: field 'batch' is {batch}, which {shares} cannot share equally; give a multiple of {ranks * parts}"
        )
    if ranks % group:
        raise InputError(
            f"[parallel]: field 'experts' is {group}, but {counted(ranks, noun)} cannot form groups of {group}; "
            f"{start.format(group)}, or set experts = 1"
        )
    if ranks % (group * replicas):
        raise InputError(
            f"[parallel]: field 'replicas' is {replicas}, but {counted(ranks, noun)} with experts = {group} cannot "
            f"form so many equal copies; {start.format(group * replicas)}"
        )


def _backend(device: torch.device) -> str:
    """Return the communication backend: NCCL between GPUs, gloo for tensors on the CPU."""
    needed = {"gloo": dist.is_available() and dist.is_gloo_available()}
    if device.type == "cuda":
        needed["nccl"] = dist.is_available() and dist.is_nccl_available()
    for name, available in needed.items():
        if not available:
            raise InputError(
                f"this build of torch has no {name!r}, which processes on {device.type} need to work together; install "
                "a torch that has it, or train with one process in fp32"
            )
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def _own_gpu() -> torch.device:
    local_rank, available = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= available:
        raise InputError(
            f"process {local_rank} of this machine has no GPU: there are {available}; start no more than "
            "that (torchrun --nproc-per-node)"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
