"""The folder of a run.

run.json          the configuration
metrics.jsonl     a row every few steps
checkpoints/      states that a stopped run resumes from
model/            the finished model in Hugging Face form, with its tokenizer
summary.json      sizes, FLOPs, validation loss and provenance of the finished run
.lock             held while a process trains in the folder
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import ConfigDict, Field

from loopscale.core.errors import InputError, StorageError
from loopscale.core.files import make_folder, read_json, write_json
from loopscale.core.schemas import File, parse
from loopscale.train.config import TrainConfig
from loopscale.train.identity import first_difference
from loopscale.train.schedule import shared_steps
from loopscale.train.sections.optimizer import ScheduleSection

SUMMARY, KIND, SCHEMA = "training summary", "training run", 1
LINGER = 5.0
"""Seconds to wait for a lock: a killed process is gone some time before the system releases it."""


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
    outer, inside = Path(folder), Path(folder) / "model"
    return inside if (inside / "config.json").is_file() and not (outer / "config.json").is_file() else outer


def run_of(model: Path) -> Path | None:
    """Return the folder of the run that wrote this model, or None."""
    run = model.absolute().parent
    return run if model.name == "model" and (run / "run.json").is_file() else None


def task_trained_on(folder: str | Path) -> str | None:
    """Return the name of the task that the model in a folder was trained on, or None."""
    run = run_of(model_of(folder))
    stored = None if run is None else stored_config(run)
    return None if stored is None else stored.data.task


class FolderInUse(InputError):  # noqa: N818 - a state of the folder
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
        raise StorageError(f"{out}: cannot be written: {error.strerror}; choose another folder (--out)") from None
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
        _check_same(out, stored, config)
    if rank:
        return
    make_folder(out)
    write_json(out / "run.json", {"kind": KIND, "schema": SCHEMA, "config": config.to_dict()})


def stored_config(out: Path) -> TrainConfig | None:
    """Return the configuration that a folder holds, if it holds one."""
    path = out / "run.json"
    if not path.is_file():
        return None
    return TrainConfig.from_dict(parse(RunFile, read_json(path), str(path)).config, str(path))


def finished(out: Path, config: TrainConfig) -> dict[str, Any] | None:
    """Return the summary of a run that is finished, or None; a changed length that cannot be resumed is refused."""
    stored = stored_config(out)
    if stored is None:
        return None
    _check_same(out, stored, config)
    summary = read_summary(out)
    tokens = config.steps * config.step_tokens
    if summary is not None and summary["tokens"] == tokens:
        return summary
    from loopscale.train.checkpoints import Checkpoints

    reached = max(
        (*Checkpoints(out / "checkpoints", 1).steps(), summary["tokens"] // config.step_tokens if summary else 0, 0)
    )
    check_length(out, config.schedule, reached, stored.steps, config.steps)
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


def _check_same(out: Path, stored: TrainConfig, wanted: TrainConfig) -> None:
    """Refuse to continue one run as another."""
    if (first := first_difference(stored, wanted)) is not None:
        raise InputError(
            f"this folder holds another run: its [{first.section}] {first.name} is {first.stored!r}, and this run's "
            f"is {first.wanted!r}",
            where=str(out),
            remedy="choose another folder",
        )
