"""What a sweep costs before it starts: FLOPs, time and disk of each run."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import tempfile
import time
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loopscale.core.devices import Device
from loopscale.core.errors import InputError
from loopscale.core.files import cache_folder, is_file, read_json, write_json
from loopscale.model import LoopedMoEConfig
from loopscale.planning.job import StepCost
from loopscale.planning.step_memory import FP32
from loopscale.sweep.spec import Run, Sweep, executed_steps
from loopscale.train.data.stores import model_config, open_batches
from loopscale.train.data.stores import open_tokens as open_store
from loopscale.train.data.token_store import TokenStore
from loopscale.train.job import CPU, real_flops_per_token, state_bytes, step_cost
from loopscale.train.trainer import Trainer

MOST = 6
"""Runs that are timed."""
STEPS, SECONDS = 6, 2.0
"""Steps timed of each after a first one, or as many as fit into these seconds."""
ANY_VOCABULARY = 264
"""A vocabulary for checks and counts that hardly depend on it."""
ROW_BYTES = 220
"""About the bytes of a line of metrics."""


@dataclass(frozen=True)
class Cost:
    """The cost of one run."""

    run: Run
    model: LoopedMoEConfig
    alone: float
    """The paper's FLOPs if every point were a separate run, 6 N_unroll D each."""
    shared: float
    """The paper's FLOPs with the trunk trained once."""
    real: float
    """Real FLOPs with the trunk trained once: attention, the output head, padding and validation included, recomputed
    blocks not."""
    disk: float
    """Bytes that stay on disk."""
    step: StepCost
    """A step of one process, in closed form: memory, FLOPs and time."""

    @property
    def memory(self) -> float:
        """Bytes of one process: states, gathered weights, gradients, activations and logits."""
        return self.step.memory


def checked(sweep: Sweep, *, progress: bool) -> list[Cost]:
    """Check every cell, prepare the tokens of the sweep, and count what its runs cost."""
    check_cells(sweep)
    with chdir(sweep.root):
        return count(sweep, open_tokens(sweep, progress))


def planned(sweep: Sweep, device: Device = CPU) -> list[Cost]:
    """Count what the runs cost on ``device``, without their text where the file states the vocabulary."""
    check_cells(sweep)
    costs = count_without_tokens(sweep, device=device)
    if costs is not None:
        return costs
    with chdir(sweep.root):
        return count(sweep, open_tokens(sweep, progress=True), device)


def times_or_flops(sweep: Sweep, costs: Sequence[Cost]) -> dict[str, float]:
    """Return the seconds of each run where all were timed on this machine before, else their FLOPs."""
    with chdir(sweep.root):
        times = as_measured(costs, now=False) or [cost.real for cost in costs]
    return {cost.run.key: time for cost, time in zip(costs, times, strict=True)}


def check_cells(sweep: Sweep) -> None:
    """Fail fast on invalid cells: build every model's configuration, for any vocabulary."""
    for run in sweep.runs:
        _model(sweep, run, ANY_VOCABULARY)


def open_tokens(sweep: Sweep, progress: bool) -> dict[str, TokenStore]:
    """Return the tokens of every run, prepared once; refuse runs whose tokens do not fill a batch."""
    stores: dict[str, TokenStore] = {}
    of_run: dict[str, TokenStore] = {}
    for run in sweep.runs:
        data, config = repr(run.config.data), run.config
        if data not in stores:
            stores[data] = open_store(config, progress)
        try:
            open_batches(config, stores[data])
        except InputError as error:
            raise InputError(f"{sweep.path}: {run.cell}: {error}") from None
        of_run[run.key] = stores[data]
    return of_run


def count(sweep: Sweep, tokens: dict[str, TokenStore], device: Device = CPU) -> list[Cost]:
    """Return the cost of every run."""
    return [
        _cost(
            run,
            _model(sweep, run, tokens[run.key]),
            tokens[run.key].tokens["validation"],
            sweep.keep_models,
            device,
        )
        for run in sweep.runs
    ]


def count_without_tokens(sweep: Sweep, vocabulary: int | None = None, device: Device = CPU) -> list[Cost] | None:
    """Return the cost of every run without its text, where the file or ``vocabulary`` states its size; else None."""
    sizes: list[Any] = [run.config.model.options.get("vocab_size", vocabulary) for run in sweep.runs]
    if not all(isinstance(size, int) for size in sizes):
        return None
    return [
        _cost(run, _model(sweep, run, size), math.inf, sweep.keep_models, device)
        for run, size in zip(sweep.runs, sizes, strict=True)
    ]


def _cost(run: Run, model: LoopedMoEConfig, validation: float, keep_models: bool, device: Device) -> Cost:
    config = run.config
    architecture = model.to_architecture()
    steps = executed_steps(config, run.points)
    paper = float(architecture.train_flops_per_token(model.recurrence))
    real = real_flops_per_token(config, model)
    # A validation is a forward, a third of a training step.
    seen = min(validation, config.run.validation_sequences * config.data.context)
    # Checkpoints, models in fp32 and metrics.
    states = state_bytes(config, architecture) * config.run.keep + (FP32 * len(run.points) if keep_models else 0)
    return Cost(
        run=run,
        model=model,
        alone=paper * sum(run.points),
        shared=paper * steps * config.step_tokens,
        real=real * (steps * config.step_tokens + len(run.points) * seen / 3),
        disk=float(architecture.parameters) * states + ROW_BYTES * steps / config.run.log_every,
        step=step_cost(config, model, run.resources.processes, device),
    )


def _model(sweep: Sweep, run: Run, tokens: TokenStore | int) -> LoopedMoEConfig:
    """Return the configuration of a run's model, for its tokens or for a size of the vocabulary."""
    config = run.config
    try:
        if isinstance(tokens, TokenStore):
            return model_config(config, tokens)
        return config.model.config(tokens, config.data.context)
    except InputError as error:
        raise InputError(f"{sweep.path}: {run.cell} cannot be trained: {error}") from None


def at_speed(costs: Sequence[Cost], speed: float) -> list[float]:
    """Return the seconds of each run at a stated speed: real FLOP/s of one worker."""
    return [cost.real / speed for cost in costs]


def on_device(costs: Sequence[Cost], utilisation: float) -> list[float]:
    """Return the seconds of each run on the devices that it was counted for, at a share of their listed rates."""
    return [cost.step.seconds * cost.real / _per_step(cost) / utilisation for cost in costs]


def as_measured(costs: Sequence[Cost], *, now: bool) -> list[float] | None:
    """Return the seconds of each run as timed on this machine: timed ``now`` if needed, or None if never before."""
    sample, known = _sample(costs), _read()
    missing = [cost for cost in sample if _shape(cost) not in known]
    if missing and not now:
        return None
    if missing:
        known |= {_shape(cost): _seconds_per_step(cost) for cost in missing}
        _path().parent.mkdir(parents=True, exist_ok=True)
        write_json(_path(), known)
    flops = [_per_step(cost) for cost in sample]
    rates = [_per_step(cost) / known[_shape(cost)] for cost in sample]
    return [cost.real / float(np.interp(_per_step(cost), flops, rates)) for cost in costs]


def _sample(costs: Sequence[Cost]) -> list[Cost]:
    """Return a few runs, from the cheapest step to the most expensive."""
    ordered = [cost for _, cost in sorted({_per_step(cost): cost for cost in costs}.items())]
    picked = np.unique(np.linspace(0, len(ordered) - 1, min(MOST, len(ordered))).round().astype(int))
    return [ordered[index] for index in picked]


def _per_step(cost: Cost) -> float:
    return real_flops_per_token(cost.run.config, cost.model) * cost.run.config.step_tokens


def _shape(cost: Cost) -> str:
    """Return a name for everything that step time depends on."""
    run = cost.run.config.run
    settings = (run.batch, run.accumulate, run.precision, run.compile, run.activation_checkpointing)
    text = json.dumps([cost.model.to_dict(), cost.run.config.data.context, settings], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _seconds_per_step(cost: Cost) -> float:
    # Without validation and checkpoints, and with a schedule that does not end.
    config = cost.run.config.changed(run={"checkpoint_every": 0, "validate_every": 0, "tokens": 1e15, "track": ()})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(config, Path(folder) / "timing")
            trainer.train(until=1)
            start = time.perf_counter()
            trainer.train(until=1 + STEPS, stop=lambda: time.perf_counter() - start > SECONDS and trainer.step > 1)
            return (time.perf_counter() - start) / (trainer.step - 1)
    finally:
        torch.set_num_threads(threads)


def _path() -> Path:
    return cache_folder() / f"step-times-{platform.node()}.json"


def _read() -> dict[str, float]:
    times = read_json(_path()) if is_file(_path()) else {}
    return times if isinstance(times, dict) else {}
