"""Passes at test time: where the loss is lowest, and how fast it rises beyond."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from loopscale.core.arrays import FloatArray
from loopscale.fitting import load_table

SOURCES = ("qlabs-test-time", "looped-nanochat", "marin-reentrant")
RESAMPLES = 200
Curve = tuple[FloatArray, FloatArray]


def curves(name: str) -> dict[tuple[str, str, int], Curve]:
    """Return passes and losses of each model, by run, training and trained passes."""
    rows: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for row in load_table(name).records():
        rows[row["run"], row["trained"], row["R_train"]].append((row["R_test"], row["loss"]))
    return {key: (np.array([r for r, _ in v], float), np.array([x for _, x in v])) for key, v in rows.items()}


def minima() -> list[dict[str, Any]]:
    """Return where each source's models are best, and how far above that they are with twice the trained passes."""
    records = []
    for name in SOURCES:
        groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for (_, trained, passes), (R, loss) in curves(name).items():
            if len(R) < 3:
                continue
            best = float(R[int(np.argmin(loss))])
            twice = float(np.interp(2 * passes, R, loss)) if R.max() >= 2 * passes else float("nan")
            groups["fixed or grown" if trained != "random" else "random"].append((best / passes, twice - loss.min()))
        for trained, values in groups.items():
            at, rise = np.array(values).T
            records.append(
                {
                    "source": name, "trained": trained, "models": len(values), "best / trained": [at.min(), at.max()],
                    "rise at twice": [float(np.nanmin(rise)), float(np.nanmax(rise))],
                }
            )  # fmt: skip
    return records


def rise(values: FloatArray, ratio: FloatArray) -> FloatArray:
    """Return a (1 / x - 1)^q below the best passes and b ln x above, x being passes over the best."""
    log_a, q, b = values
    below = np.exp(log_a) * np.maximum(1 / ratio - 1, 1e-12) ** q
    return np.where(ratio < 1, below, b * np.log(np.maximum(ratio, 1.0)))


def laws() -> list[dict[str, Any]]:
    """Return the law for each kind of training, fitted to the Q Labs models, with its error on a model left out."""
    records = []
    for title, kinds, best in (("fixed or grown", ("fixed", "grown"), 1.0), ("random", ("random",), 5 / 6)):
        models = []
        for (_, trained, passes), (R, loss) in curves("qlabs-test-time").items():
            if trained in kinds:
                at = best * passes
                models.append((R / at, loss - np.interp(at, R, loss)))
        values = _fitted(models)
        errors = [rise(_fitted(models[:k] + models[k + 1 :]), x) - y for k, (x, y) in enumerate(models)]
        random, drawn = np.random.default_rng(0), []
        for _ in range(RESAMPLES):
            drawn.append(_natural(_fitted([models[k] for k in random.integers(len(models), size=len(models))])))
        spans = np.percentile(drawn, [5, 95], axis=0).T.tolist()
        record: dict[str, Any] = {"trained": title, "models": len(models), "best / trained": best}
        for name, value, span in zip("aqb", _natural(values), spans, strict=True):
            record[name] = [float(value), *span]
        record["left out"] = float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))
        records.append(record)
    return records


def _natural(values: FloatArray) -> FloatArray:
    return np.array([np.exp(values[0]), *values[1:]])


def _fitted(models: list[Curve]) -> FloatArray:
    ratio, above = (np.concatenate(part) for part in zip(*models, strict=True))
    return np.asarray(least_squares(lambda values: rise(values, ratio) - above, [-2.0, 1.2, 0.03]).x)
