"""Do predictive intervals cover larger runs? Backtests on the real sweeps in the folder ``real`` of LOOPSCALE_DATA.

Each sweep is fitted on compute up to a tenth of its largest and predicted beyond, with default options. The score of
the predictive interval is compared with "law + noise": the spread of the resampled laws and the residual noise alone.
Random 5-fold cross-validation by run checks the same intervals inside the data.

With ``--leave-one-out``, the constants of the interval (typical growth and its weight) are chosen on the other sweeps,
by the lowest mean ratio among those that cover 85 to 96%, and scored on the one left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import NormalDist

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are small: threads only cost

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.core.numerics import student_quantile
from loopscale.fitting import Fit, Observations, fit
from loopscale.fitting.data.downloads import PUBLIC_FILES
from loopscale.fitting.predictive import HIDDEN_DECADES, excess, mean_growth
from loopscale.scaling.trust import DEGREES

KEEP = {"mlf-redpajama-c4val": "D/N >= 20"}
LEVEL = 0.9
FOLDS = 5


def sweeps() -> dict[str, Observations]:
    """Return the public sweeps of real runs by name; none where the folder is absent."""
    folder = Path(os.environ.get("LOOPSCALE_DATA", "")) / "real"
    files = sorted(folder.glob("*.csv")) if os.environ.get("LOOPSCALE_DATA") else []
    return {path.stem: Observations.of(path, keep=KEEP.get(path.stem)) for path in files if path.stem in PUBLIC_FILES}


def law_and_noise(fitted: Fit, hidden: Observations) -> tuple[FloatArray, FloatArray]:
    """Return the interval of the reference: the spread of resampled laws and the residual noise, both normal."""
    residuals, free = fitted.residuals, len(fitted.free)
    rows = len(residuals)
    noise = 1.4826 * float(np.median(np.abs(residuals))) * np.sqrt(rows / max(rows - free, 1))
    value = np.log(fitted.law(hidden.points))
    law = np.log(fitted.law.resampled(hidden.points)).std(axis=0)
    half = NormalDist().inv_cdf((1 + LEVEL) / 2) * np.sqrt(law**2 + noise**2)
    return value - half, value + half


def score(low: FloatArray, high: FloatArray, loss: FloatArray) -> tuple[float, float, float]:
    """Return coverage, median width and mean interval score, in ln loss."""
    miss = np.maximum(low - loss, 0) + np.maximum(loss - high, 0)
    return float(np.mean(miss == 0)), float(np.median(high - low)), float(np.mean(high - low + 20 * miss))


def predicted(fitted: Fit, hidden: Observations) -> tuple[FloatArray, FloatArray]:
    """Return the forecast's interval in ln loss."""
    forecast = fitted.law.forecast(hidden.points, LEVEL)
    return np.log(forecast.low), np.log(forecast.high)


def extrapolation(data: Observations, decades: float = 1.0) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the scores of the predictive interval and of the reference beyond the fitted compute."""
    flops = data.points.train_flops
    mask: BoolArray = flops > flops.max() / 10**decades * (1 + 1e-9)
    fitted, hidden = fit(data.where(~mask)), data.where(mask)
    loss = np.log(hidden.loss)
    return score(*predicted(fitted, hidden), loss), score(*law_and_noise(fitted, hidden), loss)


def cross_validation(data: Observations) -> float:
    """Return the coverage of predictive intervals over random folds of whole runs."""
    order = np.random.default_rng(0).permutation(len(data.runs))
    inside = []
    for fold in range(FOLDS):
        mask = np.isin(data.run, data.runs[order[fold::FOLDS]])
        hidden = data.where(mask)
        low, high = predicted(fit(data.where(~mask)), hidden)
        inside.append((low <= np.log(hidden.loss)) & (np.log(hidden.loss) <= high))
    return float(np.mean(np.concatenate(inside)))


@dataclass(frozen=True, eq=False)
class Parts:
    """What the predictive interval of a sweep's hidden runs is made of, before the constants."""

    excesses: list[float]
    """Squared error per decade of each backtest inside the sweep."""
    variance: FloatArray
    """Of the resampled laws and the noise, at each hidden run."""
    decades: FloatArray
    error: FloatArray
    reference: float
    """The score of "law + noise"."""

    @classmethod
    def of(cls, data: Observations) -> Parts:
        """Fit the rows up to a tenth of the largest compute."""
        flops = data.points.train_flops
        mask: BoolArray = flops > flops.max() / 10 * (1 + 1e-9)
        fitted, hidden = fit(data.where(~mask)), data.where(mask)
        law, at = fitted.law, hidden.points
        assert law.spread is not None
        low, high = np.quantile(np.log(law.resampled(at)), [0.05, 0.95], axis=0)
        deviation = (high - low) / (2 * NormalDist().inv_cdf(0.95))
        excesses = (
            excess(fitted.observations, fitted.problem, fitted.optimum, fitted.delta, decades, 0)
            for decades in HIDDEN_DECADES
        )
        return cls(
            [value for value in excesses if value is not None],
            deviation**2 + law.spread.noise**2,
            np.maximum(law.spread.decades(at), law.decades_outside(at)),
            np.log(law(at) / hidden.loss),
            score(*law_and_noise(fitted, hidden), np.log(hidden.loss))[2],
        )

    def scored(self, growth: float, weight: float) -> tuple[float, float]:
        """Return coverage and the ratio of scores with these constants."""
        mean = mean_growth(self.excesses, growth, weight)
        half = student_quantile(LEVEL, DEGREES) * np.sqrt(self.variance + mean**2 * self.decades)
        covered, _, value = score(-half, half, self.error)
        return covered, value / self.reference


def average(parts: Sequence[Parts], growth: float, weight: float) -> tuple[float, float]:
    """Return the mean coverage and the geometric mean of the ratios."""
    covered, ratio = np.array([part.scored(growth, weight) for part in parts]).T
    return float(covered.mean()), float(np.exp(np.log(ratio).mean()))


def leave_one_out() -> None:
    """Score each sweep with constants that were chosen on the others."""
    parts = {name: Parts.of(data) for name, data in sweeps().items()}
    choices, scores = list(product(np.arange(0.012, 0.05, 0.001), (1, 2, 4, 8))), []
    for name, part in parts.items():
        others = [other for key, other in parts.items() if key != name]
        usable = [pair for pair in choices if 0.85 <= average(others, *pair)[0] <= 0.96]
        growth, weight = min(usable, key=lambda pair: average(others, *pair)[1])
        scores.append(part.scored(growth, weight))
        print(
            f"{name:<26} growth {growth:.1%}, weight {weight}: covered {scores[-1][0]:.0%}, ratio {scores[-1][1]:.2f}"
        )
    covered, ratio = np.array(scores).T
    print(f"{'mean (ratio: geometric)':<26} covered {covered.mean():.1%}, ratio {np.exp(np.log(ratio).mean()):.3f}")


def main() -> None:
    """Print a row for each sweep and the averages over sweeps."""
    print(f"{'sweep':<26}{'covered':>8}{'width':>8}{'score':>8}{'ratio':>7}   {'law + noise':>11}{'5-fold':>8}")
    rows = []
    for name, data in sweeps().items():
        ours, reference = extrapolation(data)
        inside = cross_validation(data)
        rows.append((ours[0], ours[2] / reference[2], reference[0], inside))
        print(f"{name:<26}{ours[0]:>8.0%}{ours[1]:>8.4f}{ours[2]:>8.4f}{rows[-1][1]:>7.2f}   {reference[0]:>11.0%}"
              f"{inside:>8.0%}", flush=True)  # fmt: skip
    if not rows:
        print("no sweeps: set LOOPSCALE_DATA to a folder that holds real/*.csv")
        return
    covered, ratio, reference_covered, inside = (np.array(column) for column in zip(*rows, strict=True))
    print(f"{'mean (ratio: geometric)':<26}{covered.mean():>8.1%}{'':>16}{np.exp(np.log(ratio).mean()):>7.3f}   "
          f"{reference_covered.mean():>11.0%}{inside.mean():>8.1%}")  # fmt: skip


if __name__ == "__main__":
    leave_one_out() if "--leave-one-out" in sys.argv else main()
