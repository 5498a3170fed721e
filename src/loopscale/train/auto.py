"""The settings that a file leaves to loopscale with "auto", for a run that starts here: one function for each.

The layout ("accumulate") and "compile" are chosen before a run and stored with it, so that it resumes exactly.
"precision" and "deterministic" follow from the device. ``job.choose`` finds a layout for devices that are elsewhere.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from loopscale.core.devices import Device, device_called
from loopscale.train.job import CPU, choose, model_without_text, real_flops_per_token
from loopscale.train.parallel.launcher import launched_ranks
from loopscale.train.run_dir import stored_config

if TYPE_CHECKING:
    import torch

    from loopscale.train.config import TrainConfig

LAYOUT = {"accumulate", "activation_checkpointing", "activation_memory"}
"""What a chosen layout sets in [run], beside [parallel]."""
LEAST_COMPILED_STEPS = 2000
LEAST_COMPILED_FLOPS = 2e13
"""Runs that are worth compiling, on GPUs and on CPUs: compiling a model takes a core about a minute, and saves it a
tenth to a fifth of about 20 minutes of training at 20 GFLOP/s."""


def settled(config: TrainConfig, out: Path) -> TrainConfig:
    """Return the settings of a run that starts or resumes here, with the layout and "compile" chosen.

    A run that was started before keeps its choice, so that it resumes exactly.
    """
    stored = stored_config(out)
    if config.run.compile == "auto":
        chosen = None if stored is None else stored.run.compile
        config = config.changed(run={"compile": compiles(config) if chosen in (None, "auto") else chosen})
    if config.run.accumulate != "auto":
        return config
    ranks = launched_ranks()
    if stored is not None and stored.run.accumulate != "auto":
        divides = config.run.batch % (ranks * stored.run.accumulate) == 0
        if divides and ranks % stored.parallel.replicas == 0:
            layout = stored.run.model_dump(include=LAYOUT)
            return config.changed(run=layout, parallel=stored.parallel.model_dump())
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


def precision(name: str, device: torch.device) -> torch.dtype:
    """Return the type that ``[run] precision`` multiplies weights in: with "auto", bf16 on GPUs that have it."""
    import torch

    if name == "auto":
        able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if able else torch.float32
    return torch.float32 if name == "fp32" else torch.bfloat16


def deterministic(name: str, device: torch.device) -> bool:
    """Tell whether ``[run] deterministic`` asks for deterministic kernels: with "auto", on the CPU."""
    return name == "on" or (name == "auto" and device.type == "cpu")


def _this_device(ranks: int) -> Device:
    """Return the device that a process of this machine computes on, with the memory that it has here."""
    import torch

    from loopscale.train.timing import measured_device

    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    host = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / local_ranks
    if torch.cuda.is_available():
        known = device_called(torch.cuda.get_device_name())
        memory = float(torch.cuda.get_device_properties(0).total_memory)
        return replace(known or measured_device(), memory=memory, host_memory=host)
    return replace(CPU, memory=host)
