"""Do predictive intervals cover larger runs? Backtests on the real sweeps in the folder ``real`` of LOOPSCALE_DATA.

Each sweep is fitted on compute up to a tenth of its largest and predicted beyond, with default options. The score of
the predictive interval is compared with "law + noise": the spread of the resampled laws and the residual noise alone.
Random 5-fold cross-validation by run checks the same intervals inside the data.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import NormalDist

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are small: threads only cost

import numpy as np

from loopscale.arrays import BoolArray, FloatArray
from loopscale.fit import Observations, fit
from loopscale.fit.fitting import Fit

KEEP = {"mlf-redpajama-c4val": "D/N >= 20"}
LEVEL = 0.9
FOLDS = 5


def sweeps() -> dict[str, Observations]:
    """Return the real sweeps by name; none where the folder is absent."""
    folder = Path(os.environ.get("LOOPSCALE_DATA", "")) / "real"
    files = sorted(folder.glob("*.csv")) if os.environ.get("LOOPSCALE_DATA") else []
    return {path.stem: Observations.of(path, keep=KEEP.get(path.stem)) for path in files}


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
    """Return the predictive interval in ln loss."""
    low, high = fitted.law.predictive_interval(hidden.points, LEVEL)
    return np.log(low), np.log(high)


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
    main()
