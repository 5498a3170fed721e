"""From loss to accuracy in two steps, with the error of each and a backtest.

Step one leads from the loss of pretraining to the loss on the task, by a line; it is left out where the task has no
loss. Step two leads from that loss to the accuracy by a logistic curve from chance to the ceiling. The
error of a step is that on models that it was not fitted on. The backtest fits both steps to the models with the higher
losses and predicts the best ones.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from textwrap import wrap
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, nearest
from loopscale.core.text import WIDTH, fact
from loopscale.fitting.data.readers import read_table

LEAST_MODELS = 8
FOLDS = 5
HIDDEN = 0.3
"""Share of the models, those of the lowest loss, that the backtest hides."""


@dataclass(frozen=True)
class Step:
    """One step of the ladder."""

    name: str
    values: tuple[float, ...]
    """Intercept and slope of the line, or ceiling less chance, slope and middle of the logistic curve."""
    error: float
    """Root-mean-square error on models left out of the fit."""


@dataclass(frozen=True)
class Downstream:
    """What accuracy a loss leads to."""

    accuracy: str
    loss: str
    task_loss: str | None
    chance: float
    models: int
    first: Step | None
    second: Step
    both: float
    """Root-mean-square error of the accuracy over both steps, on models left out."""
    backtest: dict[str, float]
    """Models hidden, error of their accuracies, its mean (predicted minus measured), and the error without the loss."""

    def predict(self, loss: Any, level: float = 0.9) -> dict[str, FloatArray]:
        """Return the accuracy at losses of pretraining, with an interval from the errors of the backtest."""
        x = np.asarray(loss, dtype=np.float64)
        task = x if self.first is None else _line(self.first.values, x)
        value = _logistic(self.second.values, task, self.chance)
        width = NormalDist().inv_cdf((1 + level) / 2) * max(self.both, self.backtest["error"])
        return {"accuracy": value, "low": np.clip(value - width, 0, 1), "high": np.clip(value + width, 0, 1)}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"kind": "downstream", **asdict(self)}

    def summary(self, losses: FloatArray | None = None) -> str:
        """Return the answer at the losses asked for, and the error of each step."""
        lines = []
        for loss in [] if losses is None else losses.tolist():
            at = self.predict(loss)
            lines += wrap(
                f"{self.accuracy} {at['accuracy']:.3f} at {self.loss} {loss:g}, 90% interval {at['low']:.3f} to "
                f"{at['high']:.3f}.", WIDTH,
            )  # fmt: skip
        lines += [""] if lines else []
        if self.first is not None:
            lines += fact("step 1", f"{self.loss} → {self.task_loss}: error {self.first.error:.3f} nats on models left "
                          "out")  # fmt: skip
        lines += fact("step 2", f"{self.task_loss or self.loss} → {self.accuracy}: error {self.second.error:.3f}")
        lines += fact("both", f"error {self.both:.3f} on models left out, {self.models} models, chance {self.chance:g}")
        hidden = self.backtest
        lines += fact("backtest", f"the {hidden['models']:.0f} best models hidden: error {hidden['error']:.3f}, bias "
                      f"{hidden['bias']:+.3f}; the mean of the others misses by {hidden['without']:.3f}")  # fmt: skip
        return "\n".join(lines)


def downstream(
    path: str | Path, accuracy: str, *, loss: str = "loss", task_loss: str | None = None, chance: float = 0.0
) -> Downstream:
    """Fit the two steps to a table with one model a row: columns of a loss, an accuracy, and perhaps a task's loss."""
    names = [loss, accuracy, *([] if task_loss is None else [task_loss])]
    rows = _rows(path, names)
    if len(rows) < LEAST_MODELS:
        raise InputError(f"{len(rows)} models have {', '.join(names)}; it takes {LEAST_MODELS}", where=str(path))
    if not 0 <= chance < 1:
        raise InputError(f"`chance` is {chance:g}; it should be from 0 to below 1")
    x, y = rows[:, 0], rows[:, 1]
    task = x if task_loss is None else rows[:, 2]
    if y.max() > 1.0:
        raise InputError(f"{accuracy} goes up to {y.max():g}", where=str(path), remedy="give accuracies from 0 to 1")
    folds = np.random.default_rng(0).permutation(len(x)) % FOLDS
    misses = [_left_out(x, task, y, folds == fold, chance, task_loss is not None) for fold in range(FOLDS)]
    errors = [float(np.sqrt(np.mean(np.concatenate(parts) ** 2))) for parts in zip(*misses, strict=True)]
    hidden = x <= np.quantile(x, HIDDEN)
    _, _, ahead = _left_out(x, task, y, hidden, chance, task_loss is not None)
    test = {
        "models": float(hidden.sum()), "error": float(np.sqrt(np.mean(ahead**2))), "bias": float(np.mean(ahead)),
        "without": float(np.sqrt(np.mean((y[hidden] - y[~hidden].mean()) ** 2))),
    }  # fmt: skip
    first = None if task_loss is None else Step("line", _fit_line(x, task), errors[0])
    second = Step("logistic", _fit_logistic(task, y, chance), errors[1])
    return Downstream(accuracy, loss, task_loss, chance, len(x), first, second, errors[2], test)


def _left_out(
    x: FloatArray, task: FloatArray, y: FloatArray, out: Any, chance: float, two: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the misses of the task's loss, of the accuracy from it, and of both steps together, on rows left out."""
    curve = _fit_logistic(task[~out], y[~out], chance)
    reached = _line(_fit_line(x[~out], task[~out]), x[out]) if two else x[out]
    return (
        reached - task[out],
        _logistic(curve, task[out], chance) - y[out],
        _logistic(curve, reached, chance) - y[out],
    )


def _fit_line(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    slope, level = np.polyfit(x, y, 1)
    return float(level), float(slope)


def _line(values: tuple[float, ...], x: FloatArray) -> FloatArray:
    return np.asarray(values[0] + values[1] * x)


def _fit_logistic(x: FloatArray, y: FloatArray, chance: float) -> tuple[float, ...]:
    from scipy.optimize import least_squares

    spread = max(float(np.std(x)), 1e-6)
    start = np.array([1.0 - chance, np.log(2.0 / spread), float(np.median(x))])
    wide = (x.max() - x.min()) * 3

    def residuals(values: FloatArray) -> FloatArray:
        return _logistic((values[0], float(np.exp(values[1])), values[2]), x, chance) - y

    lower = [0.02, np.log(0.05 / spread), float(x.min()) - wide]
    upper = [1.0 - chance + 1e-9, np.log(20 / spread), float(x.max()) + wide]
    found = least_squares(residuals, np.clip(start, lower, upper), bounds=(lower, upper), loss="soft_l1", f_scale=0.05)
    height, log_slope, middle = found.x
    return float(height), float(np.exp(log_slope)), float(middle)


def _logistic(values: tuple[float, ...], x: FloatArray, chance: float) -> FloatArray:
    height, slope, middle = values
    return np.asarray(chance + height / (1.0 + np.exp(np.clip(slope * (x - middle), -60, 60))))


def _rows(path: str | Path, names: list[str]) -> FloatArray:
    table = read_table(path)
    for name in names:
        if name not in table.columns:
            raise InputError(f"no column {name!r}{nearest(name, list(table.columns))}", where=str(path))
    rows = np.array([[_number(cell) for cell in table.columns[name]] for name in names]).T
    return np.asarray(rows[np.isfinite(rows).all(axis=1)])


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
