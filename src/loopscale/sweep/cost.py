"""What a sweep costs before it starts: FLOPs, time and disk of each run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loopscale.errors import InputError
from loopscale.model import LoopedMoEConfig
from loopscale.sweep.spec import Run, Sweep
from loopscale.sweep.trunk import executed_steps
from loopscale.train import folders
from loopscale.train.batches import Batches
from loopscale.train.config import TrainConfig
from loopscale.train.shards import TokenStore

_STATES = 3
"""Tensors that a checkpoint holds for each weight: itself and the two moments of AdamW."""
_ROW = 220
"""Bytes of a line of metrics, about."""


@dataclass(frozen=True)
class Cost:
    """One run, counted."""

    run: Run
    model: LoopedMoEConfig
    alone: float
    """The paper's FLOPs if every point were a run of its own, 6 N_unroll D each."""
    shared: float
    """The paper's FLOPs with the trunk trained once."""
    real: float
    """Real FLOPs with the trunk trained once: attention and the output head too, and validation."""
    disk: float
    """Bytes that stay."""


def check_cells(sweep: Sweep) -> None:
    """Build every model's configuration, for any vocabulary: an impossible cell is said before any time is spent."""
    for run in sweep.runs:
        _model(run, lambda config: config.model.config(vocabulary=264, context=config.data.context), sweep)


def open_tokens(sweep: Sweep, progress: bool) -> dict[str, TokenStore]:
    """Return the tokens of every run, made once; runs that cannot cut a batch from theirs are refused."""
    stores: dict[str, TokenStore] = {}
    found: dict[str, TokenStore] = {}
    for run in sweep.runs:
        data, config = repr(run.config.data), run.config
        if data not in stores:
            stores[data] = folders.open_tokens(config, progress)
        try:
            for split in ("train", "validation"):
                Batches(stores[data], split=split, batch=config.run.batch, context=config.data.context, seed=0)
        except InputError as error:
            raise InputError(f"{sweep.path}: {run.cell}: {error}") from None
        found[run.key] = stores[data]
    return found


def count(sweep: Sweep, tokens: dict[str, TokenStore]) -> list[Cost]:
    """Return the cost of every run."""
    return [_cost(run, sweep, tokens[run.key]) for run in sweep.runs]


def _cost(run: Run, sweep: Sweep, store: TokenStore) -> Cost:
    config = run.config
    model = _model(run, lambda config: folders.model_config(config, store), sweep)
    architecture = model.to_architecture()
    steps = executed_steps(config, run.points)
    paper = float(architecture.train_flops_per_token(model.recurrence))
    real = float(architecture.real_train_flops_per_token(context=config.data.context))
    # A validation is a forward, a third of a training step.
    seen = min(store.tokens["validation"], config.run.validation_sequences * config.data.context)
    return Cost(
        run=run,
        model=model,
        alone=paper * sum(run.points),
        shared=paper * steps * config.step_tokens,
        real=real * (steps * config.step_tokens + len(run.points) * seen / 3),
        disk=_disk(run, float(architecture.parameters), steps, sweep.keep_models),
    )


def _disk(run: Run, parameters: float, steps: int, keep_models: bool) -> float:
    config = run.config.run
    models = len(run.points) if keep_models else 0
    return 4 * parameters * (_STATES * config.keep + models) + _ROW * steps / config.log_every


def _model(run: Run, build: Any, sweep: Sweep) -> LoopedMoEConfig:
    config: TrainConfig = run.config
    try:
        built: LoopedMoEConfig = build(config)
        return built
    except InputError as error:
        raise InputError(f"{sweep.path}: {run.cell} cannot be trained: {error}") from None
