"""How long runs take here: a few steps of a few of them, timed, and the rest by their FLOPs in between."""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from loopscale.files import cache_folder, is_file, read_json, write_json
from loopscale.sweep.cost import Cost
from loopscale.train.trainer import Trainer

MOST = 6
"""Runs that are timed."""
STEPS, SECONDS = 6, 2.0
"""Steps timed of each after a first one, or as many as go into these seconds."""


def at_speed(costs: Sequence[Cost], speed: float) -> list[float]:
    """Return the seconds of each run at a stated speed: real FLOP/s of one worker."""
    return [cost.real / speed for cost in costs]


def as_measured(costs: Sequence[Cost], *, now: bool) -> list[float] | None:
    """Return the seconds of each run as timed on this machine: ``now`` if need be, else None if never before."""
    chosen, known = _chosen(costs), _read()
    lacking = [cost for cost in chosen if _shape(cost) not in known]
    if lacking and not now:
        return None
    if lacking:
        known |= {_shape(cost): _seconds_per_step(cost) for cost in lacking}
        _path().parent.mkdir(parents=True, exist_ok=True)
        write_json(_path(), known)
    flops = [_per_step(cost) for cost in chosen]
    rates = [_per_step(cost) / known[_shape(cost)] for cost in chosen]
    return [cost.real / float(np.interp(_per_step(cost), flops, rates)) for cost in costs]


def _chosen(costs: Sequence[Cost]) -> list[Cost]:
    """Return a few runs, from the cheapest step to the dearest."""
    ordered = [cost for _, cost in sorted({_per_step(cost): cost for cost in costs}.items())]
    picked = np.unique(np.linspace(0, len(ordered) - 1, min(MOST, len(ordered))).round().astype(int))
    return [ordered[place] for place in picked]


def _per_step(cost: Cost) -> float:
    real = cost.model.to_architecture().real_train_flops_per_token(context=cost.run.config.data.context)
    return float(real) * cost.run.config.step_tokens


def _shape(cost: Cost) -> str:
    """Return a name for all that the time of a step hangs on."""
    run = cost.run.config.run
    settings = (run.batch, run.accumulate, run.precision, run.compile, run.activation_checkpointing)
    text = json.dumps([cost.model.to_dict(), cost.run.config.data.context, settings], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _seconds_per_step(cost: Cost) -> float:
    # Nothing is validated or kept, and the schedule is long enough not to end.
    config = cost.run.config.changed(run={"checkpoint_every": 0, "validate_every": 0, "tokens": 1e15, "track": ()})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(config, Path(folder) / "timing")
            trainer.train(until=1)
            began = time.perf_counter()
            trainer.train(until=1 + STEPS, stop=lambda: time.perf_counter() - began > SECONDS and trainer.step > 1)
            return (time.perf_counter() - began) / (trainer.step - 1)
    finally:
        torch.set_num_threads(threads)


def _path() -> Path:
    return cache_folder() / f"step-times-{platform.node()}.json"


def _read() -> dict[str, float]:
    found = read_json(_path()) if is_file(_path()) else {}
    return found if isinstance(found, dict) else {}
