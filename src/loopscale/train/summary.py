"""What a finished run is as an observation: sizes, FLOPs, loss and what produced it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loopscale import __version__
from loopscale.train.config import TrainConfig
from loopscale.train.data.token_store import TokenStore
from loopscale.train.job import real_flops_per_token
from loopscale.train.run_dir import SCHEMA, SUMMARY
from loopscale.train.schedule import scheduled_passes

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


def provenance(config: TrainConfig, store: TokenStore, resumes: int) -> dict[str, Any]:
    """Return what produced an observation: settings, schedule, data, code version, and how often the run resumed."""
    return {
        "config": config.to_dict(),
        "schedule": config.schedule.kind,
        "data": store.digest,
        "version": __version__,
        "resumes": resumes,
    }
