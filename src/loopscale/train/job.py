"""A run as a job of the planner: in closed form, what it computes and what a step needs on given devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loopscale.core.devices import Device
from loopscale.planning.job import StepCost, TrainingJob
from loopscale.planning.layouts import Layout
from loopscale.planning.recipes import padding
from loopscale.train.config import TrainConfig
from loopscale.train.data.tokenizer import vocabulary_of
from loopscale.train.schedule import recurrence_shares

if TYPE_CHECKING:
    from loopscale.architecture import Architecture
    from loopscale.model import LoopedMoEConfig

CPU = Device(0.15e12, 24e9, 100, 40e9, 1e9, 1e9, host_memory=0.0)
"""A core of a CPU. Its memory is the host's, so there is nowhere to offload to."""


def model_without_text(config: TrainConfig) -> LoopedMoEConfig:
    """Return the model's configuration before there is any text, for the vocabulary that the tokenizer names."""
    size = config.model.options.get("vocab_size")
    if not isinstance(size, int):
        size = vocabulary_of(config.data.tokenizer) if config.task is None else config.task.vocabulary
    return config.model.config(size, config.data.context)


def job_of(config: TrainConfig, model: LoopedMoEConfig, devices: int, device: Device, number: int = 2) -> TrainingJob:
    """Return a run as a job on devices; ``number`` is the bytes of a number in products."""
    architecture = model.to_architecture()
    return TrainingJob(
        architecture,
        model.recurrence,
        config.run.batch,
        config.data.context,
        devices,
        device,
        padding=row_padding(model),
        per_loop_supervision=model.reads_every_pass,
        backprop_passes=model.backprop_passes,
        shares=recurrence_shares(config, model),
        number=number,
        states=state_bytes(config, architecture),
        drops=model.dispatch == "drop-and-pad",
    )


def row_padding(model: LoopedMoEConfig) -> float:
    """Return how many rows the experts compute for each routed one in training."""
    return float(padding(model.to_architecture(), model.capacity_factor)) if model.dispatch == "drop-and-pad" else 1.0


def state_bytes(config: TrainConfig, model: Architecture) -> float:
    """Return the bytes of a weight with its moments and its average, on average over the model."""
    moments = 2.0
    if config.optimizer.name == "muon":  # one moment for hidden matrices, two for embeddings
        moments = 1 + float(model.embedding) / float(model.parameters)
    weight = 2 if config.run.precision == "bf16-weights" else 4
    return weight + 4 * (moments + bool(config.run.ema))


def real_flops_per_token(config: TrainConfig, model: LoopedMoEConfig, recomputed: float = 0.0) -> float:
    """Return the training FLOPs of a token with everything that runs, on average over the steps of the run.

    ``recomputed`` is the share of block calls that run again in backward.
    """
    flops: float = job_of(config, model, 1, CPU).flops_per_token(recomputed)
    return flops


def layout_of(config: TrainConfig, job: TrainingJob) -> Layout:
    """Return the layout that a configuration states."""
    run, parallel = config.run, config.parallel
    stored = 0.0 if run.activation_checkpointing else 1.0
    if run.activation_memory is not None:
        stored = job.stored_share(run.parts, run.activation_memory)
    return Layout(
        run.parts, parallel.replicas, parallel.reduce, stored, run.activation_memory, parallel.experts, parallel.offload
    )


def number_bytes(config: TrainConfig, device: Device) -> int:
    """Return the bytes of a number in the products of a step; "auto" is fp32 on a CPU and bf16 on listed devices."""
    name = config.run.precision
    return 4 if name == "fp32" or (name == "auto" and device is CPU) else 2


def step_cost(config: TrainConfig, model: LoopedMoEConfig, devices: int, device: Device) -> StepCost:
    """Return what a step of a run needs on devices, with the layout of "auto" chosen."""
    number = number_bytes(config, device)
    if config.run.accumulate == "auto":
        config = choose(config, devices, device, number=number, model=model).config
    job = job_of(config, model, devices, device, number)
    return job.cost(layout_of(config, job))


@dataclass(frozen=True)
class Choice:
    """A configuration with its layout chosen, and what that costs."""

    config: TrainConfig
    best: StepCost | None = None
    """None where the devices cannot share the batch equally: then nothing is chosen."""
    runner_up: StepCost | None = None


def choose(
    config: TrainConfig, devices: int, device: Device, *, number: int = 2, model: LoopedMoEConfig | None = None
) -> Choice:
    """Return the fastest layout that fits, or the one that needs the least memory where none fits."""
    if config.run.batch % devices:
        return Choice(config.changed(run={"accumulate": 1}))
    job = job_of(config, model or model_without_text(config), devices, device, number)
    ranked = job.fastest(_stated(config))
    best = ranked[0] if ranked else job.least_memory()
    settings = best.layout.settings()
    if config.run.recomputes:  # as the file has it
        settings["run"] = {"accumulate": best.layout.accumulate}
    return Choice(config.changed(**settings), best, ranked[1] if len(ranked) > 1 else None)


def _stated(config: TrainConfig) -> dict[str, Any]:
    """Return the parts of a layout that the settings state themselves: those that differ from their defaults."""
    stated = config.parallel.model_dump(exclude_defaults=True)
    return stated | ({"stored": 0.0} if config.run.recomputes else {})
