"""The final loss of a run that is still training, from its log, with the learning-rate schedule taken into account.

The annealing-aware law of ``loopscale.scaling.annealing`` is fitted to the log so far, with priors from our small
runs, and read off at the last step. A scaling law's prediction of the same run, where one is given, is averaged
in by its variance. The interval rests on backtests: the error of such forecasts is a share of the fall that is still to
come, beside the noise of the log.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, nearest
from loopscale.core.files import is_file
from loopscale.core.numerics import student_quantile
from loopscale.core.quantities import counted, decimals, number_or_nan
from loopscale.core.text import WIDTH, fact
from loopscale.fitting.data.columns import TRAINING, VALIDATION, normal_name
from loopscale.fitting.data.folders import read_events
from loopscale.fitting.data.readers import read_table
from loopscale.fitting.noise import robust_deviation
from loopscale.scaling.annealing import RateSchedule, annealed_loss
from loopscale.scaling.trust import DEGREES

STEP = ("step", "iteration", "iter", "global_step", "train_global_step", "trainer_global_step")
LOSS = ("validation_loss", "val_loss", "eval_loss", *VALIDATION, "loss", *TRAINING)
"""Headers of the loss, in the form of ``normal_name``; those of validation come first."""
RATE = ("learning_rate", "lr", "train_learning_rate", "train_lr", "lr_adamw")
LEAST_ROWS, LEAST_SHARE = 8, 0.05
"""Losses that a forecast needs, and the share of the run before which there is none."""
SETTLED = 0.1
"""Share of the log so far that is left out: the transient that no power law describes."""
ALPHA, ALPHA_WIDTH = 0.5, 0.5
"""Prior of alpha and the standard deviation of its logarithm."""
FALL, FALL_WIDTH = 0.07, 0.7
"""Prior of B over the loss, what the decay of the rate takes away, and the standard deviation of its logarithm."""
MOST_FALL = 0.3
"""B over the loss is at most this: early logs would otherwise explain their first steep fall by the rate."""
FLOOR, FLOOR_WIDTH = 0.8, 0.3
"""Prior of c over the lowest loss so far, and its standard deviation."""
SHARE_ERROR = 0.15
"""Error of the law of one run, as a share of the fall that is still to come: beside what its values leave open."""
LEAST_ERROR = 0.003
"""Part of the loss that a forecast may always miss by: the scatter between seeds."""


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


@dataclass(frozen=True)
class RunningForecast:
    """The loss with which a run will end."""

    step: int
    """The last step of the log."""
    steps: int
    loss_now: float
    """The fitted loss at that step, without the noise of the log."""
    final: float
    low: float
    high: float
    level: float
    by_log: float
    """By the log alone."""
    by_law: float | None
    """By the scaling law alone, where one was given."""
    law_weight: float
    column: str
    schedule: str
    noise: float
    """Standard deviation of the log about its curve."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"kind": "running-forecast", **asdict(self)}

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """Return the answer and what it rests on."""
        digits = decimals((self.high - self.low) / 2)
        lines = wrap(
            f"Final {self.column.replace('_', ' ')} {self.final:.{digits}f}, {self.level:.0%} interval "
            f"{self.low:.{digits}f} to {self.high:.{digits}f}.", WIDTH,
        )  # fmt: skip
        lines += ["", *fact("now", f"{self.loss_now:.{digits}f} at step {self.step:,} of {self.steps:,} "
                            f"({self.step / self.steps:.0%})")]  # fmt: skip
        parts = f"{self.by_log:.{digits}f} by the log"
        if self.by_law is not None:
            parts += f", {self.by_law:.{digits}f} by the law, which has {self.law_weight:.0%} of the weight"
        return "\n".join([*lines, *fact("parts", parts), *fact("schedule", self.schedule)])


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


def final_loss(
    log: RunLog | str | Path,
    schedule: RateSchedule | None = None,
    *,
    law_loss: float | None = None,
    law_deviation: float | None = None,
    level: float = 0.9,
) -> RunningForecast:
    """Forecast the loss with which a run will end, from its log so far.

    ``schedule`` says how long the run is and how its learning rate goes; a run folder of ours has it. ``law_loss`` and
    ``law_deviation`` are a scaling law's prediction of the same run with its standard deviation, both in nats.
    """
    log = log if isinstance(log, RunLog) else read_log(log)
    schedule = schedule or log.schedule
    if schedule is None:
        raise InputError(
            "the log does not say how long the run is",
            where=log.source, field="steps", remedy="give the steps of the whole run",
        )  # fmt: skip
    values, covariance, noise = _fitted(log, schedule)
    rate, share = _course(schedule)
    last = min(int(log.step.max()), schedule.steps) - 1
    now = float(annealed_loss(values, share[last], rate[last]))
    by_log = float(annealed_loss(values, share[-1], rate[-1]))
    slope = _slope(values, share[-1], rate[-1])
    parts = (float(np.sqrt(slope @ covariance @ slope)), SHARE_ERROR * abs(now - by_log), LEAST_ERROR * by_log)
    deviation = float(np.linalg.norm(parts))
    final, weight = by_log, 0.0
    if law_loss is not None:
        spread = law_deviation if law_deviation is not None else 0.02 * law_loss
        spread = max(spread, abs(law_loss - by_log) / 2)  # a law that disagrees is a law of other runs
        weight = deviation**2 / (deviation**2 + spread**2)
        final = (1 - weight) * by_log + weight * law_loss
        deviation = float(np.sqrt(1 - weight)) * deviation
    width = student_quantile(level, DEGREES) * deviation
    return RunningForecast(
        int(log.step.max()), schedule.steps, now, final, final - width, final + width, level, by_log, law_loss, weight,
        log.column, _schedule_text(schedule), noise,
    )  # fmt: skip


def _fitted(log: RunLog, schedule: RateSchedule) -> tuple[FloatArray, FloatArray, float]:
    """Fit the annealing-aware law to the settled part of the log; return its values, their covariance and the noise."""
    from scipy.optimize import least_squares

    if log.step.max() > schedule.steps * 1.001:
        raise InputError(
            f"the log reaches step {log.step.max():.0f}, beyond the {schedule.steps} of the run",
            where=log.source, field="steps",
        )  # fmt: skip
    reached = log.step.max() / schedule.steps
    start = max(schedule.warmup_steps, SETTLED * log.step.max())
    rows = np.flatnonzero(log.step > start)
    if len(rows) < LEAST_ROWS or reached < LEAST_SHARE:
        raise InputError(
            f"{len(rows)} losses after warm-up, {reached:.0%} of the run: too few to forecast its end",
            where=log.source, remedy=f"wait for {LEAST_ROWS} losses and {LEAST_SHARE:.0%} of the run",
        )  # fmt: skip
    rate, share = _course(schedule)
    index = np.clip(log.step[rows].astype(int) - 1, 0, schedule.steps - 1)
    x, eta, y = share[index], rate[index], log.loss[rows]
    lowest = float(np.min(y))
    scatter = max(_scatter(y), 1e-4 * lowest)

    def residuals(values: FloatArray) -> FloatArray:
        misses = (annealed_loss(values, x, eta) - y) / scatter / np.sqrt(max(len(y) / 40, 1.0))
        priors = [
            (values[2] - np.log(ALPHA)) / ALPHA_WIDTH,
            (values[3] - np.log(FALL * lowest)) / FALL_WIDTH,
            (values[0] - FLOOR * lowest) / (FLOOR_WIDTH * lowest),
        ]
        return np.concatenate([misses, priors])

    start_values = np.array([FLOOR * lowest, np.log(0.2 * lowest), np.log(ALPHA), np.log(FALL * lowest)])
    lower = [0.0, np.log(1e-4 * lowest), np.log(0.02), np.log(1e-5 * lowest)]
    upper = [lowest, np.log(20 * lowest), np.log(3.0), np.log(MOST_FALL * lowest)]
    best = least_squares(residuals, start_values, bounds=(lower, upper), loss="soft_l1", f_scale=2.0)
    jacobian = np.asarray(best.jac, dtype=np.float64)
    return np.asarray(best.x), np.asarray(np.linalg.inv(jacobian.T @ jacobian)), scatter


def _slope(values: FloatArray, share: float, rate: float) -> FloatArray:
    """Return the derivatives of the law of one run by its values."""
    _, log_A, log_alpha, log_B = values
    decay, alpha = float(np.exp(log_A) * share ** -np.exp(log_alpha)), float(np.exp(log_alpha))
    return np.array([1.0, decay, -decay * alpha * np.log(share), np.exp(log_B) * rate])


def _course(schedule: RateSchedule) -> tuple[FloatArray, FloatArray]:
    """Return the rate of each step and the share of the sum of all rates that is reached with it."""
    rate = schedule.factors()
    total = np.cumsum(rate)
    return rate, np.maximum(total / total[-1], 1e-6)


def _scatter(values: FloatArray) -> float:
    """Return the noise of a log about a smooth curve, from second differences."""
    if len(values) < 4:
        return float(np.std(values))
    second = values[2:] - 2 * values[1:-1] + values[:-2]
    return robust_deviation(second) / float(np.sqrt(6.0))


def _schedule_text(schedule: RateSchedule) -> str:
    cooldown = f", cooldown {schedule.cooldown:.0%}" if schedule.kind == "wsd" else ""
    final = f", to {schedule.final:.0%} of the peak" if schedule.final else ""
    return f"{schedule.kind}, {counted(schedule.warmup_steps, 'step')} of warm-up{cooldown}{final}"


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
