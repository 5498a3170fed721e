"""The folder of a run, and the tokens that it trains on.

run.json          the configuration
metrics.jsonl     a row every few steps
checkpoints/      states that a stopped run resumes from
model/            the finished model in Hugging Face form, with its tokenizer
summary.json      sizes, FLOPs, validation loss and provenance of the finished run
.lock             held while a process trains in the folder
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from pydantic import ConfigDict, Field

from loopscale import __version__
from loopscale.core.errors import InputError, StorageError
from loopscale.core.files import cache_folder, make_folder, read_json, write_json
from loopscale.core.schemas import File, parse
from loopscale.planning import job
from loopscale.planning.recipes import padding
from loopscale.train.config import TrainConfig
from loopscale.train.data.labels import TaskStore, prepare_rows
from loopscale.train.data.prepare import prepare
from loopscale.train.data.sources import DataSource
from loopscale.train.data.token_store import Mixture, TokenStore
from loopscale.train.schedule import recurrence_shares, scheduled_passes, shared_steps
from loopscale.train.sections.optimizer import ScheduleSection

if TYPE_CHECKING:  # commands import this file, and not all of them need torch
    from loopscale.model import LoopedMoEConfig

SUMMARY, KIND, SCHEMA = "training summary", "training run", 1


class RunFile(File):
    """run.json: the configuration of the run in a folder."""

    KIND, VERSION = KIND, SCHEMA

    config: dict[str, Any]
    """As in a training file."""


class SummaryFile(File):
    """summary.json: what a finished run measured; a sweep adds further facts."""

    KIND, VERSION = SUMMARY, SCHEMA
    model_config = ConfigDict(extra="allow")

    tokens: int = Field(ge=1)
    """D: tokens that the run was trained on."""
    validation_loss: float | None = None
    """Nats per token at the end."""
    recurrence: int | None = Field(default=None, ge=1)
    experts: float | None = Field(default=None, ge=1)
    active: int | None = Field(default=None, ge=1)
    """Parameters that a token uses, embeddings left out; ``loop`` and ``total`` are counted in the same way."""
    loop: int | None = Field(default=None, ge=0)
    total: int | None = Field(default=None, ge=1)
    training_flops: float | None = Field(default=None, gt=0)
    """As the paper counts: 6 N_unroll D."""
    real_training_flops: float | None = Field(default=None, gt=0)
    """With attention, output head, per-pass supervision and the padding of experts."""
    seed: int | None = Field(default=None, ge=0)


RESUMABLE = {"tokens", "accumulate", "divergence", "compile", "activation_checkpointing", "activation_memory"} | {
    "async_checkpoints",
    "deterministic",
    "log_every",
    "validate_every",
    "validation_sequences",
    "checkpoint_every",
    "keep",
    "track",
    "law",
    "law_slack",
    "eval_tasks",
    "eval_every",
    "eval_limit",
}
"""Fields of [run] that may change when a run resumes: its length, what it reports and keeps, and how it computes the
same sums. ``check_length`` limits the length."""


def read_summary(run: Path) -> dict[str, Any] | None:
    """Return the summary in a run's folder, or None when there is none."""
    path = run / "summary.json"
    if not path.is_file():
        return None
    data = read_json(path)
    parse(SummaryFile, data, str(path))
    assert isinstance(data, dict)
    return data


def model_of(folder: str | Path) -> Path:
    """Return the folder of a model; the folder of a run means the model inside it."""
    given, inside = Path(folder), Path(folder) / "model"
    return inside if (inside / "config.json").is_file() and not (given / "config.json").is_file() else given


def run_of(model: Path) -> Path | None:
    """Return the folder of the run that wrote this model, or None."""
    run = model.absolute().parent
    return run if model.name == "model" and (run / "run.json").is_file() else None


def task_trained_on(folder: str | Path) -> str | None:
    """Return the name of the task that the model in a folder was trained on, or None."""
    run = run_of(model_of(folder))
    stored = None if run is None else stored_config(run)
    name = None if stored is None else stored.get("data", {}).get("task")
    return name if isinstance(name, str) else None


def open_tokens(config: TrainConfig, progress: bool) -> TokenStore:
    """Return the tokens of a run; they are made now if no run on this text has made them before."""
    data = config.data
    fields = DataSource.__dataclass_fields__
    if config.task is not None:
        return TaskStore.of(config.task)
    if data.format != "text":
        columns = ("input_ids", "labels") if data.format == "labels" else ("prompt", "completion")
        rows = DataSource(**{name: getattr(data, name) for name in fields})
        return prepare_rows(rows, columns, _folder_of(rows, data.folder, data.format))
    if not data.mix:
        return _open_source(DataSource(**{name: getattr(data, name) for name in fields}), data.folder, config, progress)
    parts = {}
    for name, source in data.sources.items():
        folder = None if data.folder is None else str(Path(data.folder) / name)
        values = {key: getattr(source if hasattr(source, key) else data, key) for key in fields}
        parts[name] = _open_source(DataSource(**values), folder, config, progress)
    return Mixture.of(parts, data.mix)


def stored_tokens(config: TrainConfig) -> TokenStore | None:
    """Return the tokens of a run where they are prepared or need no preparation; makes nothing."""
    data = config.data
    if config.task is not None:
        return TaskStore.of(config.task)
    if data.mix or data.format != "text":
        return None
    source = DataSource(**{name: getattr(data, name) for name in DataSource.__dataclass_fields__})
    folder = _folder_of(source, data.folder)
    return TokenStore.open(folder) if folder.is_dir() else None


def _open_source(source: DataSource, given: str | None, config: TrainConfig, progress: bool) -> TokenStore:
    return prepare(source, _folder_of(source, given), progress=progress, processes=config.data.processes)


def _folder_of(source: DataSource, given: str | None, kind: str = "text") -> Path:
    """Return the folder of the tokens of a source: the one that the settings name, or one in the user's cache."""
    if given is not None:
        return Path(given)
    identity = source.identity() if kind == "text" else source.identity() | {"format": kind}
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]
    return cache_folder() / "tokens" / name


def model_config(config: TrainConfig, store: TokenStore) -> LoopedMoEConfig:
    """Return the model's configuration, for the vocabulary of the tokens."""
    # A multiple of 8 keeps rows of the head aligned.
    vocabulary = -(-store.vocabulary // 8) * 8
    return config.model.config(vocabulary, config.data.context, eos_token_id=store.end, pad_token_id=None)


ADDED = {("optimizer", "name"): "adamw"}
"""Settings that checkpoints of version 0.2 lack, with the value that those runs had."""


def identity(config: TrainConfig, model: LoopedMoEConfig, store: TokenStore) -> dict[str, Any]:
    """Return what a checkpoint must share with a run so that the run can resume from it."""
    own = {name: getattr(model, name) for name in type(model).__annotations__ if name not in ("model_type",)}
    fixed = {"data": store.digest, "context": config.data.context, "batch": config.run.batch, "seed": config.run.seed}
    sections = {
        f"{section}.{name}": value
        for section in ("optimizer", "schedule")
        for name, value in getattr(config, section).model_dump(mode="json").items()
        if ADDED.get((section, name)) != value
    }
    plain: dict[str, Any] = json.loads(json.dumps({**own, **fixed, **sections}, default=str))
    return plain


LINGER = 5.0
"""Seconds to wait for a lock: a killed process counts as dead some time before the last of its threads gives it up."""


class FolderInUse(InputError):  # noqa: N818 - it says what is the case
    """Another process is training in the folder of a run."""


@contextmanager
def locked(out: Path, rank: int = 0) -> Iterator[None]:
    """Hold the lock of a run folder, so that two processes never train in it; re-entrant within a process."""
    if rank:
        yield
        return
    make_folder(out)
    lock = FileLock(out / ".lock", is_singleton=True)
    try:
        lock.acquire(timeout=LINGER)
    except Timeout:
        raise FolderInUse(
            "another process is training in this folder",
            where=str(out),
            remedy="wait for it, stop it, or choose another folder (--out)",
        ) from None
    except OSError as error:
        raise StorageError(f"{out}: cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


def is_locked(out: Path) -> bool:
    """Tell whether a process of this machine trains in a run folder."""
    if not (out / ".lock").is_file():
        return False
    try:
        with FileLock(out / ".lock", timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a folder that others may only read
        return False


def open_run(out: Path, config: TrainConfig, rank: int) -> None:
    """Make the run's folder, or check that it holds this run."""
    stored = stored_config(out)
    if stored is not None:
        _check_same(out, stored, config.to_dict())
    if rank:
        return
    make_folder(out)
    write_json(out / "run.json", {"kind": KIND, "schema": SCHEMA, "config": config.to_dict()})


def stored_config(out: Path) -> dict[str, Any] | None:
    """Return the configuration that a folder holds, if it holds one."""
    path = out / "run.json"
    if not path.is_file():
        return None
    return TrainConfig.from_dict(parse(RunFile, read_json(path), str(path)).config, str(path)).to_dict()


def finished(out: Path, config: TrainConfig) -> dict[str, Any] | None:
    """Return the summary of a run that is finished, or None; a changed length that cannot be resumed is refused."""
    stored = stored_config(out)
    if stored is None:
        return None
    _check_same(out, stored, config.to_dict())
    summary = read_summary(out)
    tokens = config.steps * config.step_tokens
    if summary is not None and summary["tokens"] == tokens:
        return summary
    from loopscale.train.checkpoints import Checkpoints

    before = TrainConfig.from_dict(stored)
    reached = max(
        (*Checkpoints(out / "checkpoints", 1).steps(), summary["tokens"] // config.step_tokens if summary else 0, 0)
    )
    check_length(out, config.schedule, reached, before.steps, config.steps)
    return None


def check_length(where: Path, schedule: ScheduleSection, step: int, before: int, steps: int) -> None:
    """Refuse to resume at ``step`` of a run of ``before`` steps as one of ``steps``, if their schedules differ there.

    The result would be reported as a run of the new length although its learning rate followed the old one.
    """
    shared = shared_steps(schedule, min(before, steps))
    if before == steps or step <= shared:
        return
    reason = {
        "cosine": "under the cosine schedule runs of different lengths have no step in common",
        "wsd": f"under the wsd schedule both are the same only up to step {shared}, where the shorter one cools down",
        "constant": "it is already past the new end",
    }[schedule.kind]
    remedy = "start a new run in another folder (--out NEW)"
    if schedule.kind == "wsd":
        remedy += f", or continue from before the cooldown in one: --branch {where} --out NEW"
    raise InputError(
        f"{where}: this run of {before} steps is at step {step} and cannot become one of {steps} steps: {reason}; "
        f"{remedy}"
    )


def summary(config: TrainConfig, model: LoopedMoEConfig, step: int, loss: float) -> dict[str, Any]:
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
        "real_training_flops": real_flops_per_token(config, model) * tokens,
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


@dataclass(frozen=True)
class Difference:
    """A setting that two runs do not share."""

    section: str
    name: str
    stored: Any
    wanted: Any


def differences(stored: dict[str, Any], wanted: dict[str, Any], *, measured_alike: bool = False) -> list[Difference]:
    """Return the settings that make ``wanted`` another run than ``stored``, both as ``TrainConfig.to_dict`` gives them.

    What may change when a run resumes is left out: ``RESUMABLE``, the devices, and how they share the work. With
    ``measured_alike`` the losses of both must also be measured in the same way, as those of a sweep are.
    """
    ignored = {("data", "processes"), *(("run", name) for name in RESUMABLE)}
    if measured_alike:
        ignored.discard(("run", "validation_sequences"))
    return [
        Difference(section, name, before.get(name), values.get(name))
        for section, values in wanted.items()
        if section not in ("parallel", "resources")
        and isinstance(values, dict)
        and isinstance(before := stored.get(section), dict)
        for name in {**before, **values}
        if (section, name) not in ignored and before.get(name) != values.get(name)
    ]


def _check_same(out: Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to continue one run as another."""
    for first in differences(stored, wanted)[:1]:
        raise InputError(
            f"this folder holds another run: its [{first.section}] {first.name} is {first.stored!r}, and this run's "
            f"is {first.wanted!r}",
            where=str(out),
            remedy="choose another folder",
        )
