"""``[run] accumulate = "auto"``: the fastest setting that fits the devices, chosen before a run and kept with it."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscale.core.devices import Device, device_called
from loopscale.planning.job import StepCost, TrainingJob
from loopscale.planning.layouts import Layout
from loopscale.train import run_dir
from loopscale.train.config import TrainConfig
from loopscale.train.data.tokenizer import vocabulary_of
from loopscale.train.schedule import recurrence_shares
from loopscale.train.sections.run import ParallelSection
from loopscale.train.summary import real_flops_per_token, row_padding

if TYPE_CHECKING:
    from loopscale.architecture import Architecture
    from loopscale.model import LoopedMoEConfig

CPU = Device(0.15e12, 24e9, 100, 40e9, 1e9, 1e9, host_memory=0.0)
"""A core of a CPU. Its memory is the host's, so there is nowhere to offload to."""
LEAST_COMPILED_STEPS = 2000
LEAST_COMPILED_FLOPS = 2e13
"""Runs that are worth compiling, on GPUs and on CPUs: compiling a model takes a core about a minute, and saves it a
tenth to a fifth of about 20 minutes of training at 20 GFLOP/s."""
CHOSEN = {
    "run": ("accumulate", "activation_checkpointing", "activation_memory"),
    "parallel": ("replicas", "reduce", "experts", "offload"),
}
"""What "auto" chooses, by section."""


@dataclass(frozen=True)
class Choice:
    """A configuration with the settings of "auto" chosen, and what they cost."""

    config: TrainConfig
    best: StepCost | None = None
    """None where the devices cannot share the batch equally: then nothing is chosen."""
    runner_up: StepCost | None = None


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


def state_bytes(config: TrainConfig, model: Architecture) -> float:
    """Return the bytes of a weight with its moments and its average, on average over the model."""
    moments = 2.0
    if config.optimizer.name == "muon":  # one moment for hidden matrices, two for embeddings
        moments = 1 + float(model.embedding) / float(model.parameters)
    weight = 2 if config.run.precision == "bf16-weights" else 4
    return weight + 4 * (moments + bool(config.run.ema))


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
    """Return what a step of a run needs on devices, in closed form, with the settings of "auto" chosen."""
    number = number_bytes(config, device)
    if config.run.accumulate == "auto":
        config = choose(config, devices, device, number=number, model=model).config
    job = job_of(config, model, devices, device, number)
    return job.cost(layout_of(config, job))


def choose(
    config: TrainConfig, devices: int, device: Device, *, number: int = 2, model: LoopedMoEConfig | None = None
) -> Choice:
    """Return the fastest settings that fit, or those that need the least memory where none fits."""
    if config.run.batch % devices:
        return Choice(config.changed(run={"accumulate": 1}))
    model = model or model_without_text(config)
    job = job_of(config, model, devices, device, number)
    ranked = job.fastest(_pinned(config))
    best = ranked[0] if ranked else job.least_memory()
    settings = best.layout.settings()
    if config.run.recomputes:  # as the file has it
        settings["run"] = {"accumulate": best.layout.accumulate}
    return Choice(config.changed(**settings), best, ranked[1] if len(ranked) > 1 else None)


def _pinned(config: TrainConfig) -> dict[str, Any]:
    """Return the parts of a layout that the settings state themselves: those that differ from their defaults."""
    parallel, pinned = config.parallel, dict[str, Any]()
    defaults = ParallelSection()
    for name in CHOSEN["parallel"]:
        if getattr(parallel, name) != getattr(defaults, name):
            pinned[name] = getattr(parallel, name)
    if config.run.recomputes:
        pinned["stored"] = 0.0
    return pinned


def settled(config: TrainConfig, out: Path) -> TrainConfig:
    """Return the settings of a run that starts or resumes here, with those of "auto" chosen.

    A run that was started before keeps its choice, so that it resumes exactly.
    """
    stored = run_dir.stored_config(out)
    if config.run.compile == "auto":
        chosen = None if stored is None else stored.run.compile
        config = config.changed(run={"compile": compiles(config) if chosen in (None, "auto") else chosen})
    if config.run.accumulate != "auto":
        return config
    from loopscale.train.parallel.process import launched, precision

    ranks = int(os.environ["WORLD_SIZE"]) if launched() else 1
    if stored is not None and stored.run.accumulate != "auto":
        values = stored.to_dict()
        before = {section: {name: values[section][name] for name in names} for section, names in CHOSEN.items()}
        whole = config.run.batch % (ranks * before["run"]["accumulate"]) == 0
        if whole and ranks % before["parallel"]["replicas"] == 0:
            return config.changed(**before)
    import torch

    target = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    number = precision(config.run.precision, target).itemsize
    return choose(config, ranks, _this_device(ranks), number=number).config


def compiles(config: TrainConfig) -> bool:
    """Tell whether a run is compiled here: with "auto", if it is long enough and a compiler is installed."""
    import torch

    if config.run.compile != "auto":
        return config.run.compile
    if torch.cuda.is_available():
        return importlib.util.find_spec("triton") is not None and config.steps >= LEAST_COMPILED_STEPS
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    flops = real_flops_per_token(config, model_without_text(config)) * config.steps * config.step_tokens
    return compiler is not None and bool(flops >= LEAST_COMPILED_FLOPS)


def _this_device(ranks: int) -> Device:
    """Return the device that a process of this machine computes on, with the memory that it has here."""
    import torch

    from loopscale.train.timing import measured_device

    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    host = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / here
    if torch.cuda.is_available():
        known = device_called(torch.cuda.get_device_name())
        memory = float(torch.cuda.get_device_properties(0).total_memory)
        return replace(known or measured_device(), memory=memory, host_memory=host)
    return replace(CPU, memory=host)
