"""What a run keeps in its folder, and where its tokens are.

run.json          the configuration
metrics.jsonl     a row every few steps
checkpoints/      the moments that a killed run goes on from
model/            the finished model in Hugging Face form, with its tokenizer
summary.json      sizes, FLOPs and the validation loss of the finished run
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscale.errors import InputError
from loopscale.files import cache_folder, make_folder, read_json, versioned, write_json
from loopscale.train.config import TrainConfig
from loopscale.train.data.token_store import DataSource, TokenStore, prepare

if TYPE_CHECKING:  # commands import this file, and not all of them need torch
    from loopscale.model import LoopedMoEConfig

SUMMARY, SCHEMA = "training summary", 1


def read_summary(run: Path) -> dict[str, Any] | None:
    """Return the summary in a run's folder, or None where there is none."""
    path = run / "summary.json"
    if not path.is_file():
        return None
    data = read_json(path)
    versioned(data, str(path), SUMMARY, SCHEMA).take("tokens", int)  # what everyone here asks it for
    assert isinstance(data, dict)
    return data


def model_of(folder: str | Path) -> Path:
    """Return the folder of the model: a run's folder stands for the model that the run left in it."""
    where, left = Path(folder), Path(folder) / "model"
    return left if (left / "config.json").is_file() and not (where / "config.json").is_file() else where


def run_of(model: Path) -> Path | None:
    """Return the folder of the run that left this model there, or None."""
    run = model.absolute().parent
    return run if model.name == "model" and (run / "run.json").is_file() else None


KIND = "training run"
FREE = {"tokens", "accumulate", "divergence", "compile", "activation_checkpointing"} | {
    "log_every",
    "validate_every",
    "validation_sequences",
    "checkpoint_every",
    "keep",
    "track",
}
"""What may change when a run goes on: its length, what it reports and keeps, and how it computes the same sums."""


def open_tokens(config: TrainConfig, progress: bool) -> TokenStore:
    """Return the run's tokens, made now if no run on this text has made them before."""
    source = DataSource(**{name: getattr(config.data, name) for name in DataSource.__dataclass_fields__})
    if config.data.folder is not None:
        return prepare(source, Path(config.data.folder), progress=progress)
    name = hashlib.sha256(json.dumps(source.identity(), sort_keys=True).encode()).hexdigest()[:20]
    return prepare(source, cache_folder() / "tokens" / name, progress=progress)


def model_config(config: TrainConfig, store: TokenStore) -> LoopedMoEConfig:
    """Return the model's configuration, for the vocabulary of the tokens."""
    # A multiple of 8 keeps rows of the head aligned.
    vocabulary = -(-store.vocabulary // 8) * 8
    return config.model.config(vocabulary, config.data.context, eos_token_id=store.end, pad_token_id=None)


def identity(config: TrainConfig, model: LoopedMoEConfig, store: TokenStore) -> dict[str, Any]:
    """Return what a checkpoint must share with a run for the one to continue the other."""
    own = {name: getattr(model, name) for name in type(model).__annotations__ if name not in ("model_type",)}
    made = {"data": store.digest, "context": config.data.context, "batch": config.run.batch, "seed": config.run.seed}
    optimizer = {f"optimizer.{name}": value for name, value in asdict(config.optimizer).items()}
    plain: dict[str, Any] = json.loads(json.dumps({**own, **made, **optimizer}, default=str))
    return plain


def open_run(out: Path, config: TrainConfig, rank: int) -> None:
    """Make the run's folder, or check that it holds this run."""
    found = stored_config(out)
    if found is not None:
        _check_same(out, found, config.to_dict())
    if rank:
        return
    make_folder(out)
    write_json(out / "run.json", {"kind": KIND, "schema": SCHEMA, "config": config.to_dict()})


def stored_config(out: Path) -> dict[str, Any] | None:
    """Return the configuration that a folder holds, if it holds one."""
    path = out / "run.json"
    if not path.is_file():
        return None
    fields = versioned(read_json(path), str(path), KIND, SCHEMA)
    config = fields.take("config", dict)
    fields.done()
    return config


def finished(out: Path, config: TrainConfig) -> dict[str, Any] | None:
    """Return the summary of a run that is done, or None."""
    found = stored_config(out)
    if found is None:
        return None
    _check_same(out, found, config.to_dict())
    summary = read_summary(out)
    return summary if summary is not None and summary["tokens"] >= config.steps * config.step_tokens else None


def summary(config: TrainConfig, model: LoopedMoEConfig, step: int, loss: float) -> dict[str, Any]:
    """Return what a finished run is: an observation for fitting, and how it was made."""
    architecture = model.to_architecture()
    tokens = step * config.step_tokens
    R = model.recurrence
    return {
        "kind": SUMMARY,
        "schema": SCHEMA,
        "validation_loss": loss,
        "tokens": tokens,
        "recurrence": R,
        "experts": config.model.experts,
        "active": int(architecture.active),
        "loop": int(architecture.loop),
        "total": int(architecture.total),
        "training_flops": float(architecture.train_flops_per_token(R)) * tokens,
        "seed": config.run.seed,
    }


def _check_same(out: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to continue one run as another; its length and what it reports may change."""
    for section, values in wanted.items():
        before = found.get(section)
        if not isinstance(values, dict) or not isinstance(before, dict):
            continue
        for name in {**before, **values}:
            if section == "parallel" or (section == "run" and name in FREE):
                continue
            if before.get(name) != values.get(name):
                raise InputError(
                    f"{out}: this folder holds another run: its [{section}] {name} is {before.get(name)!r}, and this "
                    f"run's is {values.get(name)!r}; choose another folder"
                )
