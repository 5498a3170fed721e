"""The final loss of a run that is still training, from its log, with the learning-rate schedule taken into account.

The annealing-aware law of ``loopscale.scaling.annealing`` is fitted to the log so far, with priors from our small
runs, and read off at the last step. A scaling law's prediction of the same run, where one is given, is averaged
in by its variance. The interval rests on backtests: the error of such forecasts is a share of the fall that is still to
come, beside the noise of the log.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.numerics import student_quantile
from loopscale.core.quantities import counted, decimals
from loopscale.core.text import WIDTH, fact
from loopscale.fitting.data.run_logs import LEAST_ROWS, RunLog, read_log
from loopscale.fitting.noise import robust_deviation
from loopscale.scaling.annealing import RateSchedule, annealed_loss
from loopscale.scaling.trust import DEGREES

LEAST_SHARE = 0.05
"""Share of a run before which there is no forecast."""
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
