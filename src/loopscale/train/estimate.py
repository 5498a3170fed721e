"""What a training step needs on a cluster, before any GPU is used: a simulation of the real step.

The real model, sharding, step and optimiser run on fake tensors, which have shapes and no data, in a fake process group
of the wanted size. Memory is the sum of the storages alive at each moment; communication is what the collectives of
the step would move; a read of a value by the host raises, so a step that completes has none. The time of a step is a
roofline: the larger of arithmetic at the device's peak and communication at the link's, a lower bound.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from loopscale.core.devices import NODE, USABLE, UTILISATION, Device, find_device
from loopscale.core.errors import InputError
from loopscale.model import LoopedMoEConfig
from loopscale.model.experts import device_kernels
from loopscale.planning.design import sizes_text
from loopscale.planning.job import expected_days, step_seconds
from loopscale.train.auto import compiles
from loopscale.train.averaging import Average
from loopscale.train.config import TrainConfig
from loopscale.train.data.batches import Batch
from loopscale.train.init import materialise, meta_model
from loopscale.train.job import CPU, Choice, choose, job_of, layout_of, model_without_text, number_bytes
from loopscale.train.memory import recompute_blocks
from loopscale.train.meter import Meter, watched_storages
from loopscale.train.optimizers import build_optimizer, fill_state
from loopscale.train.parallel.process import ParallelProcess, check_shares
from loopscale.train.step import apply, gradients
from loopscale.train.timing import block_rate

OFFLOADED = ("optimizer", "sharded gradients", "weights")
"""Kinds of memory that ``[parallel] offload`` moves to the host. Gradients of the first part are counted on the device
until the second begins: the trainer copies them one block at a time."""


@dataclass(frozen=True)
class Estimate:
    """The needs of a training step and of the whole run; all numbers are simulated."""

    gpus: int
    device: str
    peak_bytes: int
    """Highest memory of tensors on one GPU."""
    parts: dict[str, int]
    """What the memory holds at the peak."""
    host_bytes: int
    """Weights, gradients and optimiser in the memory of the host, for one GPU, with ``[parallel] offload``."""
    host_seconds: float
    """The optimiser on the host, in ``step_seconds``."""
    memory_bytes: float
    """Memory of the device."""
    communication_bytes: dict[str, float]
    """Bytes that one GPU receives in a step, by kind of collective."""
    host_syncs: int
    """Reads of device values by the host in a step, outside logging."""
    flops: float
    """FLOPs of a step on one GPU, with output head, attention, supervision, padding and recomputation."""
    compute_seconds: float
    communication_seconds: float
    traffic_seconds: float
    """To read and write the memory of the GPU."""
    step_seconds: float
    """The least time of a step, at the listed rates of the device."""
    tokens_per_second: float
    least_days: float
    """The whole run at the listed rates."""
    days: float
    """The whole run at ``utilisation`` of them."""
    utilisation: float
    cost: float | None
    """Dollars of ``days``; None where no price was given."""
    sizes: str
    """The sizes of the model in words, as in plans."""
    chosen: str | None = None
    """What "auto" chose; None where the file sets it."""
    runner_up: str | None = None
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The same as sections of a training file."""
    advice: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether the peak fits in the usable memory of the device."""
        return self.peak_bytes <= USABLE * self.memory_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"kind": "training estimate", "simulated": True, "fits": self.fits, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class _Simulated(ParallelProcess):
    """A rank of a fake process group, which records what each part of a batch communicates."""

    meter: Meter
    marks: list[dict[str, float]] = field(default_factory=list)

    def defer_reduction(self, model: Any, last: bool) -> None:
        self.marks.append(self.meter.communication.copy())
        if self.offload and self.reduce != "step":  # those of the part before are sharded, and on the host
            for weight in model.parameters():
                if weight.grad is not None:
                    self.meter.rename(weight.grad, "sharded gradients")
        super().defer_reduction(model, last)


def estimate(
    config: TrainConfig,
    gpus: int,
    device: str,
    *,
    price: float | None = None,
    utilisation: float = UTILISATION,
) -> Estimate:
    """Simulate a training step of ``config`` on ``gpus`` devices; ``price`` is in dollars per device-hour."""
    model = model_without_text(config)
    listed = CPU if device == "cpu" else find_device(device)
    if listed.link is None:
        raise InputError(f"a step on {device} cannot be simulated, because its links are not listed; use --check")
    number = number_bytes(config, listed)
    choice = Choice(config)
    if config.run.accumulate == "auto":
        choice = choose(config, gpus, listed, number=number, model=model)
        config = choice.config
    check_shares(config, gpus, "GPU")
    process, stored = _simulated_step(config, model, gpus, torch.float32 if number == 4 else torch.bfloat16)
    if device == "cpu":  # this machine: its rate is measured, so all of it is reached
        sequences = config.run.batch // config.run.parts // gpus
        rate = block_rate(model, sequences, config.data.context, compiled=compiles(config))
        listed, utilisation = replace(listed, flops=rate), 1.0
    meter, job = process.meter, job_of(config, model, gpus, listed, number)
    communication = _communication(process.marks, config.run.parts)
    flops = job.flops_per_token(1 - stored) * config.step_tokens / gpus
    compute = flops / listed.flops
    closed = job.cost(layout_of(config, job))
    moving = _moving_seconds(communication, config, gpus, listed) + closed.copy_seconds
    seconds = step_seconds(compute, closed.traffic_seconds, moving, closed.host_seconds)
    days = expected_days(seconds, config.steps, utilisation)
    on_host = OFFLOADED if config.parallel.offload else ()
    result = Estimate(
        gpus=gpus,
        device=device,
        peak_bytes=meter.peak,
        parts={kind: size for kind, size in sorted(meter.at_peak.items()) if size and kind not in on_host},
        host_bytes=sum(meter.at_peak[kind] for kind in on_host),
        host_seconds=closed.host_seconds,
        memory_bytes=listed.memory,
        communication_bytes=communication,
        host_syncs=0,
        flops=flops,
        compute_seconds=compute,
        communication_seconds=moving,
        traffic_seconds=closed.traffic_seconds,
        step_seconds=seconds,
        tokens_per_second=config.step_tokens / seconds,
        least_days=expected_days(seconds, config.steps, 1.0),
        days=days,
        utilisation=utilisation,
        cost=None if price is None else days * 24 * gpus * price,
        sizes=sizes_text(model.to_architecture()),
        chosen=None if choice.best is None else str(choice.best.layout),
        runner_up=None if choice.runner_up is None else str(choice.runner_up),
        settings={} if choice.best is None else choice.best.layout.settings(),
    )
    return result if result.fits else replace(result, advice=_advice(config, gpus))


def _simulated_step(
    config: TrainConfig, model: LoopedMoEConfig, gpus: int, dtype: torch.dtype
) -> tuple[_Simulated, float]:
    """Simulate a step as one of ``gpus`` processes; return it with what it measured, and the share of blocks stored."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=gpus)
    try:
        meter = Meter(model.vocab_size, OFFLOADED if config.parallel.offload else ())
        process = _Simulated.of(config, torch.device("cpu"), 0, gpus, dtype, meter=meter)
        process.check_experts(model.num_experts)
        return process, _simulate(config, model, process)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise InputError(
            f"the step reads values of the device ({error.func}), which cannot be simulated: with [parallel] experts "
            "above 1, set [model] dispatch = 'drop-and-pad'"
        ) from None
    finally:
        dist.destroy_process_group()


def _simulate(config: TrainConfig, model: LoopedMoEConfig, process: _Simulated) -> float:
    """Run one step with at most two parts of a batch, which more parts repeat; return the share of blocks stored."""
    run, context, meter = config.run, config.data.context, process.meter
    sequences = run.batch // run.parts // process.ranks
    fixed = deepcopy(model)
    fixed.random_recurrence = None  # a draw reads its value; memory is that of R, which "poisson" may exceed
    network = process.sharded(meta_model(fixed), process.mesh())  # fake tensors cannot make a mesh
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, device_kernels(), watched_storages(meter), meter:
        materialise(network, process.device)
        network.train()
        meter.kind = "optimizer"
        optimizer = build_optimizer(network, config.optimizer, model.hidden_size, model.recurrence)
        fill_state(optimizer)
        average = Average(network, run.ema) if run.ema else None
    stored = recompute_blocks(network, config, process.ranks, process.dtype)
    ids = np.zeros((sequences, context), np.int64)
    parts = [Batch(ids, ids, np.zeros(ids.shape, np.bool_))] * min(2, run.parts)
    meter.kind = "step"
    with fake, device_kernels(), watched_storages(meter), meter:
        gradients(network, parts, process, config.data.document_mask)
        process.marks.append(meter.communication.copy())
        apply(network, optimizer, process, config.optimizer.clip)
        if average is not None:
            average.update(1)
        process.marks.append(meter.communication.copy())
    return stored


def _communication(marks: list[dict[str, float]], parts: int) -> dict[str, float]:
    """Return the communication of a step: every part but the last repeats the first simulated one."""
    total = dict(marks[-1])
    if parts > 2:
        for kind, size in marks[1].items():
            total[kind] += (size - marks[0].get(kind, 0.0)) * (parts - 2)
    return {kind: size for kind, size in sorted(total.items()) if size}


def _moving_seconds(communication: dict[str, float], config: TrainConfig, gpus: int, device: Device) -> float:
    """Return the seconds that the bytes of a step take over the links, or the network where a group spans nodes."""
    across = communication.get("allreduce", 0.0)  # between copies of the model
    exchanged = sum(size for kind, size in communication.items() if "alltoall" in kind)  # between holders of experts
    within = sum(communication.values()) - across - exchanged
    links = device.link or device.network, device.network
    return (
        within / links[gpus // config.parallel.replicas > NODE]
        + across / links[gpus > NODE]
        + exchanged / links[config.parallel.experts > NODE]
    )


def _advice(config: TrainConfig, gpus: int) -> list[str]:
    """Return what to change where the step does not fit, the cheapest first."""
    advice = []
    if config.run.batch // config.run.parts // gpus > 1:
        advice.append("raise [run] accumulate: fewer sequences at once")
    if not config.run.recomputes:
        advice.append('set [run] activation_memory, like "20GB": some blocks are recomputed')
    if config.parallel.reduce != "block":
        advice.append(f'set [parallel] reduce = "{"pass" if config.parallel.reduce == "step" else "block"}"')
    if not config.parallel.offload:
        advice.append("set [parallel] offload = true: weights and optimiser in the memory of the host, slower steps")
    if config.parallel.replicas > 1:
        advice.append("lower [parallel] replicas: each copy is then sharded over more GPUs")
    return [*advice, "use more GPUs, or GPUs with more memory"]
