"""Which settings make a run what it is: what a checkpoint must share with it, and how two runs differ."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loopscale.train.config import TrainConfig
from loopscale.train.data.token_store import TokenStore
from loopscale.train.sections import may_change

if TYPE_CHECKING:  # commands that only plan a sweep import this file, and do not load torch
    from loopscale.model import LoopedMoEConfig

ADDED = {
    "optimizer.name": "adamw",
    "output_bias": False,
    "qk_norm": "none",
    "qkv_bias": False,
    "router_score": "sigmoid",
}
"""What the identities in checkpoints of version 0.2 lack, with the values that those runs had."""


def identity(config: TrainConfig, model: LoopedMoEConfig, store: TokenStore) -> dict[str, Any]:
    """Return what a checkpoint must share with a run so that the run can resume from it."""
    own = {name: getattr(model, name) for name in type(model).__annotations__ if name not in ("model_type",)}
    fixed = {"data": store.digest, "context": config.data.context, "batch": config.run.batch, "seed": config.run.seed}
    sections = {
        f"{section}.{name}": value
        for section in ("optimizer", "schedule")
        for name, value in getattr(config, section).model_dump(mode="json").items()
    }
    plain: dict[str, Any] = json.loads(json.dumps({**own, **fixed, **sections}, default=str))
    return plain


@dataclass(frozen=True)
class Difference:
    """A setting that two runs do not share."""

    section: str
    name: str
    stored: Any
    wanted: Any


def first_difference(stored: TrainConfig, wanted: TrainConfig, *, measured_alike: bool = False) -> Difference | None:
    """Return the first setting that makes ``wanted`` another run than ``stored``; None if they are the same run.

    Settings that may change when a run resumes do not count; their sections mark them so. With ``measured_alike`` the
    losses of both must also be measured in the same way, as those of a sweep are.
    """
    earlier, later = stored.to_dict(), wanted.to_dict()
    for section, field in TrainConfig.model_fields.items():
        before, after = earlier.get(section), later.get(section)
        if may_change(field) or not isinstance(before, dict) or not isinstance(after, dict):
            continue
        settings = getattr(stored, section).__class__.model_fields
        for name in {**before, **after}:
            ignored = name in settings and may_change(settings[name])
            if measured_alike and name == "validation_sequences":
                ignored = False
            if not ignored and before.get(name) != after.get(name):
                return Difference(section, name, before.get(name), after.get(name))
    return None
