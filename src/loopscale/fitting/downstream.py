"""From compute to loss to accuracy, with the error of each step and backtests.

The first step leads from training compute to the loss of pretraining, L = c + a C^-b, where the table states sizes and
tokens. The second leads from the loss to the accuracy: by a line to the task's own loss, where there is one, and from
there by a logistic curve from chance to the ceiling. The error of a step is that on models that it was not fitted on.
One backtest fits the way from the loss to the models with the higher losses and predicts the best ones; the other fits
all steps to the models of less compute and predicts the largest from their compute alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist
from textwrap import wrap
from typing import Any

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.core.errors import InputError, nearest
from loopscale.core.quantities import format_power, number_or_nan
from loopscale.core.text import WIDTH, fact
from loopscale.fitting.data.columns import find_columns
from loopscale.fitting.data.readers import RawTable, read_table
from loopscale.fitting.frontier import FLOOR
from loopscale.fitting.held_out import rms
from loopscale.scaling import costs

LEAST_MODELS = 8
LEAST_RANGE = 1.0
"""Range of ln C from which the step from compute to loss is fitted."""
MOST_LOSS = 1000.0
"""No loss of a language model is larger."""
UNIT = 1e21
"""Compute at which the coefficient a of the power of compute is stated."""
FOLDS = 5
HIDDEN = 0.3
"""Share of the models, those of the lowest loss or of the most compute, that a backtest hides."""


@dataclass(frozen=True)
class Step:
    """One step of the ladder."""

    name: str
    values: tuple[float, ...]
    """Intercept and slope of the line; ceiling less chance, slope and middle of the logistic curve; or c, a and b of
    the power of compute, a at 1e21 FLOPs."""
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
    compute: Step | None = None
    """From compute to loss; None where the table states no size and tokens."""
    from_compute: dict[str, float] | None = None
    """Error of the accuracy from compute alone on models left out (``left_out``), and the backtest of that."""

    def loss_at(self, flops: Any) -> FloatArray:
        """Return the loss of pretraining after so much training compute."""
        if self.compute is None:
            raise InputError("the table states no size and tokens", remedy="add columns N and D, or flops")
        return _power(self.compute.values, np.asarray(flops, dtype=np.float64))

    def predict_from_compute(self, flops: Any, level: float = 0.9) -> dict[str, FloatArray]:
        """Return the accuracy after so much compute, with an interval from the errors of all steps together."""
        value = self.predict(self.loss_at(flops), level)["accuracy"]
        assert self.from_compute is not None
        return _interval(value, max(self.from_compute["left_out"], self.from_compute["error"]), level)

    def predict(self, loss: Any, level: float = 0.9) -> dict[str, FloatArray]:
        """Return the accuracy at losses of pretraining, with an interval from the errors of the backtest."""
        x = np.asarray(loss, dtype=np.float64)
        task = x if self.first is None else _line(self.first.values, x)
        value = _logistic(self.second.values, task, self.chance)
        return _interval(value, max(self.both, self.backtest["error"]), level)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"kind": "downstream", **asdict(self)}

    def summary(self, losses: FloatArray | None = None, flops: FloatArray | None = None) -> str:
        """Return the answer at the losses or the compute asked for, and the error of each step."""
        budgets, levels = ([] if values is None else values.tolist() for values in (flops, losses))
        asked = [
            (f"after {format_power(budget)} FLOPs ({self.loss} {self.loss_at(budget):.3f})",
             self.predict_from_compute(budget))
            for budget in budgets
        ]  # fmt: skip
        asked += [(f"at {self.loss} {level:g}", self.predict(level)) for level in levels]
        lines = []
        for where, at in asked:
            span = f"90% interval {at['low']:.3f} to {at['high']:.3f}"
            lines += wrap(f"{self.accuracy} {at['accuracy']:.3f} {where}, {span}.", WIDTH)
        lines += [""] if lines else []
        if self.compute is not None:
            lines += fact("step 1", f"compute → {self.loss}: error {self.compute.error:.3f} on models left out")
        if self.first is not None:
            lines += fact("step 2", f"{self.loss} → {self.task_loss}: error {self.first.error:.3f}")
        lines += fact("" if self.first else "step 2", f"{self.task_loss or self.loss} → {self.accuracy}: error "
                      f"{self.second.error:.3f}")  # fmt: skip
        lines += fact("from loss", f"error {self.both:.3f} on models left out, {self.models} models, chance "
                      f"{self.chance:g}")  # fmt: skip
        lines += fact("", f"the {_tested(self.backtest, 'best')}")
        if (whole := self.from_compute) is not None:
            lines += fact("compute", f"error {whole['left_out']:.3f} on models left out, from their compute alone")
            lines += fact("", f"the {_tested(whole, 'largest')}")
        return "\n".join(lines)


def _interval(accuracy: FloatArray, error: float, level: float) -> dict[str, FloatArray]:
    width = NormalDist().inv_cdf((1 + level) / 2) * error
    low, high = np.clip(accuracy - width, 0, 1), np.clip(accuracy + width, 0, 1)
    return {"accuracy": accuracy, "low": low, "high": high}


def _tested(hidden: dict[str, float], which: str) -> str:
    return (
        f"{hidden['models']:.0f} {which} models hidden: error {hidden['error']:.3f}, bias {hidden['bias']:+.3f}; the "
        f"mean of the others misses by {hidden['without']:.3f}"
    )


def downstream(
    path: str | Path, accuracy: str, *, loss: str = "loss", task_loss: str | None = None, chance: float = 0.0
) -> Downstream:
    """Fit the steps to a table with one model a row: columns of a loss, an accuracy, and perhaps a task's loss.

    Where the table has columns of size and tokens, or of FLOPs, the step from compute to loss is fitted too.
    """
    names = [loss, accuracy, *([] if task_loss is None else [task_loss])]
    table = read_table(path)
    rows, flops = _rows(table, names, str(path))
    if len(rows) < LEAST_MODELS:
        raise InputError(
            f"{len(rows)} models have {', '.join(names)}",
            where=str(path), remedy=f"give {LEAST_MODELS} models or more",
        )  # fmt: skip
    if not 0 <= chance < 1:
        raise InputError(f"`chance` is {chance:g}", remedy="it should be from 0 to below 1")
    x, y = rows[:, 0], rows[:, 1]
    task = x if task_loss is None else rows[:, 2]
    if y.max() > 1.0:
        raise InputError(f"{accuracy} goes up to {y.max():g}", where=str(path), remedy="give accuracies from 0 to 1")
    losses = np.concatenate([x, task])
    if len(wrong := losses[(losses <= 0) | (losses > MOST_LOSS)]):
        remedy = f"losses are above zero, and at most {MOST_LOSS:g}"
        raise InputError(f"a loss is {wrong[0]:g}", where=str(path), remedy=remedy)
    folds = np.random.default_rng(0).permutation(len(x)) % FOLDS
    misses = [_left_out(x, task, y, folds == fold, chance, task_loss is not None) for fold in range(FOLDS)]
    errors = [rms(np.concatenate(parts)) for parts in zip(*misses, strict=True)]
    hidden = x <= np.quantile(x, HIDDEN)
    test = _backtest(_left_out(x, task, y, hidden, chance, task_loss is not None)[2], y, hidden)
    first = None if task_loss is None else Step("line", _fit_line(x, task), errors[0])
    second = Step("logistic", _fit_logistic(task, y, chance), errors[1])
    answer = Downstream(accuracy, loss, task_loss, chance, len(x), first, second, errors[2], test)
    stated = np.isfinite(flops)
    if stated.sum() < LEAST_MODELS or np.ptp(np.log(flops[stated])) < LEAST_RANGE:
        return answer
    compute, whole = _from_compute(flops[stated], x[stated], task[stated], y[stated], chance, task_loss is not None)
    return replace(answer, compute=compute, from_compute=whole)


def _backtest(misses: FloatArray, y: FloatArray, hidden: BoolArray) -> dict[str, float]:
    """Return how well hidden accuracies were predicted, and how well the mean of the others predicts them."""
    return {
        "models": float(hidden.sum()), "error": rms(misses), "bias": float(np.mean(misses)),
        "without": rms(y[hidden] - y[~hidden].mean()),
    }  # fmt: skip


def _from_compute(
    flops: FloatArray, x: FloatArray, task: FloatArray, y: FloatArray, chance: float, two: bool
) -> tuple[Step, dict[str, float]]:
    """Return the step from compute to loss, and how well the accuracy follows from compute by all steps."""

    def misses(out: BoolArray) -> tuple[FloatArray, FloatArray]:
        reached = _power(_fit_power(flops[~out], x[~out]), flops[out])
        task_reached = _line(_fit_line(x[~out], task[~out]), reached) if two else reached
        return reached - x[out], _logistic(_fit_logistic(task[~out], y[~out], chance), task_reached, chance) - y[out]

    folds = np.random.default_rng(0).permutation(len(x)) % FOLDS
    losses, accuracies = zip(*(misses(folds == fold) for fold in range(FOLDS)), strict=True)
    hidden = _largest(flops)
    whole = {"left_out": rms(np.concatenate(accuracies)), **_backtest(misses(hidden)[1], y, hidden)}
    return Step("power", _fit_power(flops, x), rms(np.concatenate(losses))), whole


def _largest(flops: FloatArray) -> BoolArray:
    """Return the models of the most compute, as near to the hidden share as models of equal compute allow."""
    cuts = np.unique(flops)[2:]  # two values of compute at least are left to fit
    shares = np.array([np.mean(flops >= cut) for cut in cuts])
    cut = cuts[np.argmin(np.abs(shares - HIDDEN))] if len(cuts) else flops.max()
    return np.asarray(flops >= cut)


def _fit_power(flops: FloatArray, loss: FloatArray) -> tuple[float, float, float]:
    """Fit L = c + a (C / 1e21)^-b with the floor c at the share of the lowest loss that forecasts expect."""
    from scipy.optimize import least_squares

    floor = FLOOR * float(loss.min())
    at = np.log(flops / UNIT)

    def residuals(values: FloatArray) -> FloatArray:
        return np.asarray(np.log(floor + np.exp(values[0] - values[1] * at)) - np.log(loss))

    slope, level = np.polyfit(at, np.log(loss - floor), 1)
    start = np.array([level, np.clip(-slope, 0.01, 0.9)])
    best = least_squares(residuals, start, bounds=([-20, 0], [20, 1]), loss="soft_l1", f_scale=0.02).x
    return floor, float(np.exp(best[0])), float(best[1])


def _power(values: tuple[float, ...], flops: FloatArray) -> FloatArray:
    floor, scale, exponent = values
    return np.asarray(floor + scale * (flops / UNIT) ** -exponent)


def _left_out(
    x: FloatArray, task: FloatArray, y: FloatArray, out: BoolArray, chance: float, two: bool
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
    best = least_squares(residuals, np.clip(start, lower, upper), bounds=(lower, upper), loss="soft_l1", f_scale=0.05)
    height, log_slope, middle = best.x
    return float(height), float(np.exp(log_slope)), float(middle)


def _logistic(values: tuple[float, ...], x: FloatArray, chance: float) -> FloatArray:
    height, slope, middle = values
    return np.asarray(chance + height / (1.0 + np.exp(np.clip(slope * (x - middle), -60, 60))))


def _rows(table: RawTable, names: list[str], where: str) -> tuple[FloatArray, FloatArray]:
    """Return the columns asked for of the models that have all of them, and their training compute, NaN if unknown."""
    for name in names:
        if name not in table.columns:
            raise InputError(f"no column {name!r}{nearest(name, list(table.columns))}", where=where)
    rows = np.array([_numbers(table, name) for name in names]).T
    complete = np.isfinite(rows).all(axis=1)
    columns = find_columns(table.columns, {"loss": names[0]}, where)

    def field(name: str) -> FloatArray | None:
        column = columns.get(name)
        return None if column is None else _numbers(table, column.name) * (column.unit or 1.0)

    flops, size, tokens = field("flops"), field("active"), field("tokens")
    if flops is None:
        unknown = size is None or tokens is None
        flops = np.full(len(rows), np.nan) if unknown else np.asarray(costs.train_flops(size, tokens))
    return np.asarray(rows[complete]), np.where(flops > 0, flops, np.nan)[complete]


def _numbers(table: RawTable, name: str) -> FloatArray:
    return np.array([number_or_nan(cell) for cell in table.columns[name]])
