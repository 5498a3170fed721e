"""Recurrence on repeated data: which weights overfit, and how many passes pay."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopscale.fitting import Observations, fit, load_public
from loopscale.fitting.compare import compare
from loopscale.scaling import Points, ScalingLaw, costs
from sweeps import R_D, data_term, repeated

FORMS = (
    ("no repetition", "chinchilla", {}),
    ("repetition alone", "chinchilla+repetition", {}),
    ("excess parameters", "chinchilla+excess", {}),
    ("overfitting of N_eff", "chinchilla+overfit", {}),
    ("overfitting of stored weights", "chinchilla+stored-overfit", {"R_D": R_D}),
)
DECAYS = (0.2, 0.4, 0.8, 1.2, 1.6)
TOKENS = 996_147_200
LOOP_SHARE = 0.36
"""N_loop / N_act of the Q Labs models, on average."""


def parts(data: Observations) -> dict[str, np.ndarray]:
    """Return the regimes that are held out in turn."""
    R, N, again = data.points.recurrence, data.points.active, repeated(data)
    return {
        "ten epochs, R > 1": again & (R > 1),
        "fresh, R > 1": ~again & (R > 1),
        "ten epochs, R ≥ 4": again & (R >= 4),
        "ten epochs, N > 400M": again & (N > 4e8),
        "ten epochs, N < 150M": again & (N < 1.5e8),
    }


def forms() -> list[dict[str, Any]]:
    """Return each form's error on runs it has not seen: five folds, and whole regimes in turn."""
    data, term = load_public("qlabs-regimes"), data_term()
    records = []
    for title, outer, held in FORMS:
        fixed = {**term, **held}
        folds = compare(data, [], outer=outer, mappings=("bounded",), fixed=fixed).scores[0]
        record: dict[str, Any] = {"law": title, "coefficients": folds.coefficients, "five folds": folds.rmse}
        for name, hidden in parts(data).items():
            law = fit(data.where(~hidden), outer=outer, mapping="bounded", fixed=fixed, resamples=0).law
            record[name] = _rmse(law, data.where(hidden))
        records.append(record)
    return records


def _rmse(law: ScalingLaw, data: Observations) -> float:
    return float(np.sqrt(np.mean((law(data.points) - data.loss) ** 2)))


def joint() -> dict[str, Any]:
    """Return the joint law at weight decay 0.8, and R_D where it is fitted and not held."""
    data, term = load_public("qlabs-regimes"), data_term()
    fitted = fit(data, outer="chinchilla+stored-overfit", mapping="bounded", fixed={**term, "R_D": R_D})
    free = fit(data, outer="chinchilla+stored-overfit", mapping="bounded", fixed=term)
    spans = {row["coefficient"]: row for row in fitted.conf_int().records()}
    return {
        "fit": fitted,
        "intervals": {name: spans[name] for name in ("O", "nu", "kappa1", "kappa2", "alpha", "c")},
        "R_D": next(row for row in free.conf_int().records() if row["coefficient"] == "R_D"),
    }


def decays() -> list[dict[str, Any]]:
    """Return the overfitting term at each weight decay, fitted to the runs of ten epochs with the size term held."""
    term = data_term()
    base = joint()["fit"].law.coefficients
    held = {**term, "R_D": R_D, "nu": base["nu"], "alpha": base["alpha"], "A": base["A"]}
    records = []
    for decay in DECAYS:
        data = load_public("qlabs-regimes", weight_decay=decay)
        again = data.where(repeated(data))
        fitted = fit(again, outer="chinchilla+stored-overfit", mapping="bounded", fixed=held)
        span = {row["coefficient"]: row for row in fitted.conf_int().records()}
        records.append(
            {"weight decay": decay, "rmse": fitted.law.rmse}
            | {name: [span[name][key] for key in ("estimate", "low", "high")] for name in ("O", "c", "kappa1")}
        )
    return records


def measured_best(data: Observations, flops: np.ndarray) -> list[float]:
    """Return the passes of lowest loss at each compute: losses interpolated in ln compute, a parabola in ln R.

    NaN where fewer than three numbers of passes reach that compute.
    """
    R = data.points.recurrence
    compute = data.points.train_flops
    best = []
    for budget in flops:
        passes, losses = [], []
        for value in np.unique(R):
            at = np.argsort(compute[value == R])
            x, y = np.log(compute[value == R])[at], data.loss[value == R][at]
            if len(x) > 1 and x[0] <= np.log(budget) <= x[-1]:
                passes.append(float(value))
                losses.append(float(np.interp(np.log(budget), x, y)))
        if len(passes) < 3:
            best.append(float("nan"))
            continue
        a, b, _ = np.polyfit(np.log(passes), losses, 2)
        vertex = float(np.exp(-b / (2 * a))) if a > 0 else passes[int(np.argmin(losses))]
        best.append(float(np.clip(vertex, passes[0], passes[-1])))
    return best


def predicted_best(law: ScalingLaw, flops: np.ndarray, unique: float, tokens: float = TOKENS) -> list[float]:
    """Return the passes of lowest loss that the law expects at each compute, size being what the compute leaves."""
    passes = np.linspace(1.0, 16.0, 301)
    best = []
    for budget in flops:
        N = budget / (costs.TRAIN * tokens * (1 + (passes - 1) * LOOP_SHARE))
        points = Points(N, tokens, passes, loop=LOOP_SHARE * N, unique_tokens=min(unique, tokens))
        best.append(float(passes[int(np.argmin(law(points)))]))
    return best
