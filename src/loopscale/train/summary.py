"""What a finished run is as an observation: sizes, FLOPs, loss and what produced it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loopscale import __version__
from loopscale.planning import job
from loopscale.planning.recipes import padding
from loopscale.train.config import TrainConfig
from loopscale.train.data.token_store import TokenStore
from loopscale.train.run_dir import SCHEMA, SUMMARY
from loopscale.train.schedule import recurrence_shares, scheduled_passes

if TYPE_CHECKING:
    from loopscale.model import LoopedMoEConfig


def summary_of(config: TrainConfig, model: LoopedMoEConfig, step: int, loss: float) -> dict[str, Any]:
    """Return the observation that a finished run is."""
    architecture = model.to_architecture()
    tokens = step * config.step_tokens
    stages = scheduled_passes(config) or {model.recurrence: 1.0}
    return {
        "kind": SUMMARY,
        "schema": SCHEMA,
        "validation_loss": loss,
        "tokens": tokens,
        "recurrence": model.recurrence,
        "experts": config.model.experts,
        "active": int(architecture.active),
        "loop": int(architecture.loop),
        "total": int(architecture.total),
        "training_flops": sum(float(architecture.train_flops_per_token(R)) * share for R, share in stages.items())
        * tokens,
        "real_training_flops": float(real_flops_per_token(config, model)) * tokens,
        "seed": config.run.seed,
    }


def row_padding(model: LoopedMoEConfig) -> float:
    """Return how many rows the experts compute for each routed one in training."""
    return float(padding(model.to_architecture(), model.capacity_factor)) if model.dispatch == "drop-and-pad" else 1.0


def real_flops_per_token(config: TrainConfig, model: LoopedMoEConfig, recomputed: float = 0.0) -> float:
    """Return the training FLOPs of a token with everything that runs, on average over the steps of the run.

    ``recomputed`` is the share of block calls that run again in backward.
    """
    return job.real_flops_per_token(
        model.to_architecture(),
        recurrence_shares(config, model),
        context=config.data.context,
        padding=row_padding(model),
        per_loop_supervision=model.reads_every_pass,
        backprop_passes=model.backprop_passes,
        recomputed=recomputed,
    )


def provenance(config: TrainConfig, store: TokenStore, resumes: int) -> dict[str, Any]:
    """Return what produced an observation: settings, schedule, data, code version, and how often the run resumed."""
    return {
        "config": config.to_dict(),
        "schedule": config.schedule.kind,
        "data": store.digest,
        "version": __version__,
        "resumes": resumes,
    }
