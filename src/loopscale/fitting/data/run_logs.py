"""The log of one run: a run folder of ours, TensorBoard events, a table of W&B, CSV or JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, nearest
from loopscale.core.files import is_file
from loopscale.core.quantities import number_or_nan
from loopscale.fitting.data.columns import TRAINING, VALIDATION, normal_name
from loopscale.fitting.data.folders import read_events
from loopscale.fitting.data.readers import read_table
from loopscale.scaling.annealing import RateSchedule

STEP = ("step", "iteration", "iter", "global_step", "train_global_step", "trainer_global_step")
LOSS = ("validation_loss", "val_loss", "eval_loss", *VALIDATION, "loss", *TRAINING)
"""Headers of the loss, in the form of ``normal_name``; those of validation come first."""
RATE = ("learning_rate", "lr", "train_learning_rate", "train_lr", "lr_adamw")
LEAST_ROWS = 8
"""Losses that a forecast needs; a column with fewer is not preferred."""


@dataclass(frozen=True, eq=False)
class RunLog:
    """The losses of a run so far."""

    step: FloatArray
    loss: FloatArray
    rate: FloatArray | None
    """The learning rate, where the log has it."""
    column: str
    """Which loss it is."""
    source: str
    schedule: RateSchedule | None = None
    """As the run's own folder states it; None for other logs."""

    def until(self, step: float) -> RunLog:
        """Return the log as it was at a step."""
        rows = self.step <= step
        rate = None if self.rate is None else self.rate[rows]
        return replace(self, step=self.step[rows], loss=self.loss[rows], rate=rate)


def read_log(path: str | Path, column: str | None = None) -> RunLog:
    """Read the log of a run: a run folder of ours, a TensorBoard folder, a table of W&B, CSV or JSON lines.

    The columns of step, loss and learning rate are found by their usual names; a validation loss is preferred where it
    has enough rows. ``column`` names another one.
    """
    folder = Path(path)
    if folder.is_dir():
        own = folder / "metrics.jsonl"
        if own.is_file():
            schedule = _own_schedule(folder)
            return replace(_from_records(_own_records(folder, schedule), str(own), column), schedule=schedule)
        return _from_records(_event_records(folder), str(path), column)
    if not is_file(path):
        raise InputError("no such file or folder", where=str(path))
    if str(path).lower().endswith((".jsonl", ".ndjson")):
        return _from_records(_json_lines(folder), str(path), column)
    columns = read_table(path).columns
    rows = zip(*columns.values(), strict=True)
    return _from_records([dict(zip(columns, row, strict=True)) for row in rows], str(path), column)


def _from_records(records: Sequence[Mapping[str, Any]], source: str, column: str | None) -> RunLog:
    if not records:
        raise InputError("it has no rows", where=source)
    names = list(dict.fromkeys(name for record in records for name in record))
    step = next(iter(_columns(names, STEP)), None)
    if step is None:
        raise InputError(f"no column of steps among {', '.join(names[:8])}", where=source,
                         remedy=f"call it {STEP[0]}")  # fmt: skip
    chosen = column or _loss_column(records, names)
    if chosen is None or chosen not in names:
        raise InputError(
            f"no column {column!r}{nearest(column, names)}" if column else "no column of losses",
            where=source, field="column", remedy="name the column of the loss",
        )  # fmt: skip
    rate_name = next(iter(_columns(names, RATE)), "")
    cells = [[number_or_nan(record.get(name)) for name in (step, chosen, rate_name)] for record in records]
    rows = np.array([row for row in cells if np.isfinite(row[:2]).all()]).reshape(-1, 3)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    rate = rows[:, 2] if len(rows) and np.isfinite(rows[:, 2]).all() else None
    return RunLog(rows[:, 0], rows[:, 1], rate, chosen, source)


def _columns(names: list[str], headers: Sequence[str]) -> list[str]:
    """Return the columns with one of these headers, in the order of the headers."""
    by_header = {normal_name(name): name for name in reversed(names)} | {name: name for name in names}
    return list(dict.fromkeys(by_header[header] for header in headers if header in by_header))


def _loss_column(records: Sequence[Mapping[str, Any]], names: list[str]) -> str | None:
    """Return the first column of losses that has enough rows, or the first of all."""
    losses = _columns(names, LOSS)
    counts = {name: sum(np.isfinite(number_or_nan(record.get(name))) for record in records) for name in losses}
    return next((name for name in losses if counts[name] >= LEAST_ROWS), losses[0] if losses else None)


def _json_lines(path: Path) -> list[dict[str, Any]]:
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line) if line.strip() else {}
        except json.JSONDecodeError:
            continue  # a line that is being written
        if not isinstance(record, dict):
            raise InputError(f"line {number} is no object", where=str(path))
        records.append(record)
    return records


def _own_records(folder: Path, schedule: RateSchedule | None) -> list[dict[str, Any]]:
    """Return the rows of a run folder of ours; those of a sweep's branch come after its trunk's, one folder up."""
    records, trunk = _json_lines(folder / "metrics.jsonl"), folder.resolve().parent / "metrics.jsonl"
    if not trunk.is_file():
        return records
    length = math.inf if schedule is None else schedule.steps + 1  # a branch without a cooldown has no rows itself
    first = min((number_or_nan(record.get(STEP[0])) for record in records), default=length)
    return [record for record in _json_lines(trunk) if number_or_nan(record.get(STEP[0])) < first] + records


def _event_records(folder: Path) -> list[dict[str, Any]]:
    """Return the scalars of a TensorBoard folder by step."""
    events = read_events(folder)
    tags = events.Tags()["scalars"]
    if not tags:
        raise InputError(
            "no metrics.jsonl and no TensorBoard scalars there",
            where=str(folder), remedy="give the folder of a run, or a table of its log",
        )  # fmt: skip
    steps: dict[int, dict[str, Any]] = {}
    for tag in tags:
        for event in events.Scalars(tag):
            steps.setdefault(event.step, {"step": event.step})[tag] = event.value
    return [steps[step] for step in sorted(steps)]


def _own_schedule(folder: Path) -> RateSchedule | None:
    """Return the schedule of a run folder of ours, from the settings that it keeps."""
    for name in ("config.json", "run.json", "summary.json"):
        path = folder / name
        if path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
            config = content.get("config", content) if isinstance(content, dict) else {}
            if isinstance(config, dict) and "schedule" in config and "run" in config:
                return schedule_of(config)
    return None


def schedule_of(config: Mapping[str, Any]) -> RateSchedule:
    """Return the schedule of a run from the sections of its training file."""
    run, data, schedule = (config.get(name, {}) for name in ("run", "data", "schedule"))
    steps = round(float(run["tokens"]) / (run["batch"] * data["context"]))
    names = ("kind", "warmup_steps", "cooldown", "final")
    return RateSchedule(max(1, steps), **{name: schedule[name] for name in names if name in schedule})
