"""A small law of what rounding costs, from the rows of measure.py: ``python experiments/quantisation/law.py FILE ...``.

For each model and part: difference = a * 2**(-c bits) * R**p, by least squares of logarithms, with 90% intervals from
resampled sequences. For each part over the models of text together: difference = a * 2**(-c bits) * (D / N)**g * R**p,
by weighted least squares of the costs themselves, so that settings within noise count too, with 90% intervals from
resampled models. In the laws of single models, settings whose cost is not above two standard errors are left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

RESAMPLES = 500
LEAST_ERROR = 0.1
"""Relative error of a setting at least, as in loopscale.planning.rounding."""


def fit(rows: list[dict[str, Any]], chosen: np.ndarray | None = None) -> np.ndarray | None:
    """Return log2 a, c and p; None with too few settings above noise."""
    points = []
    for row in rows:
        costs = np.array(row["sequences"])
        mean = (costs if chosen is None else costs[chosen]).mean()
        if mean > 0:
            points.append((row["bits"], np.log2(row["R"]), np.log2(mean)))
    if len(points) < 4 or len({point[0] for point in points}) < 2 or len({point[1] for point in points}) < 2:
        return None
    bits, passes, cost = np.array(points).T
    solution, *_ = np.linalg.lstsq(np.stack((np.ones_like(bits), -bits, passes), axis=1), cost, rcond=None)
    return np.asarray(solution)


def together(rows: list[dict[str, Any]]) -> np.ndarray:
    """Return log2 a, c, g and p of several models."""
    terms = np.array([(1, -row["bits"], np.log2(row["ratio"]), np.log2(row["R"])) for row in rows])
    cost, error = (np.array([row[name] for row in rows]) for name in ("difference", "error"))
    error = np.hypot(error, LEAST_ERROR * cost)
    start = (1.0, 2.0, 0.3, 0.0)
    return np.asarray(least_squares(lambda c: (np.exp2(np.clip(terms @ c, -60, 20)) - cost) / error, start).x)


def print_together(part: str, rows: list[dict[str, Any]], generator: np.random.Generator) -> None:
    """Print the law of a part over all models."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    if len(models) < 3 or sum(row["difference"] > 2 * row["error"] for row in rows) < len(rows) / 4:
        print(f"all models, {part}: too few settings above noise for a law")
        return
    samples = []
    for _ in range(RESAMPLES):
        chosen = generator.choice(models, len(models))
        samples.append(together([row for name in chosen for row in rows if row["model"] == name]))
    values = np.array([together(rows), *np.quantile(samples, (0.05, 0.95), axis=0)])
    values[:, 0] = 2 ** values[:, 0]
    told = [
        f"{name} = {v:.2f} ({least:.2f} to {most:.2f})" for name, (v, least, most) in zip("acgp", values.T, strict=True)
    ]
    print(f"all models, {part}: {', '.join(told)}; {len(rows)} settings of {len(models)} models")


def main() -> None:
    """Print tables and laws."""
    rows = [json.loads(line) for file in sys.argv[1:] for line in Path(file).read_text().splitlines()]
    generator = np.random.default_rng(0)
    for model, part in dict.fromkeys((row["model"], row["part"]) for row in rows):
        of = [row for row in rows if (row["model"], row["part"]) == (model, part)]
        for R in dict.fromkeys(row["R"] for row in of):
            shown = [f"{r['bits']}: {r['difference']:+.4f}±{r['error']:.4f}" for r in of if r["R"] == R]
            print(f"{model} {part} R={R} loss {next(r['loss'] for r in of if r['R'] == R):.3f}  " + "  ".join(shown))
        clear = [row for row in of if row["difference"] > 2 * row["error"]]
        best = fit(clear)
        if best is None:
            print(f"{model} {part}: too few settings above noise for a law")
            continue
        count = len(clear[0]["sequences"])
        samples = [fit(clear, generator.integers(0, count, count)) for _ in range(RESAMPLES)]
        low, high = np.quantile([sample for sample in samples if sample is not None], (0.05, 0.95), axis=0)
        named = zip("acp", best, low, high, strict=True)
        fitted = [
            f"{name} = {value:.2f} ({least:.2f} to {most:.2f})"
            for name, value, least, most in ((n, *(2**x for x in v)) if n == "a" else (n, *v) for n, *v in named)
        ]
        print(f"{model} {part}: {', '.join(fitted)}; {len(clear)} of {len(of)} settings")
    for kind in ("plain", "noise"):
        for part in dict.fromkeys(row["part"] for row in rows):
            of = [row for row in rows if row.get("ratio") and row["part"] == part]
            of = [row for row in of if ("-noise-" in row["model"]) is (kind == "noise")]
            print_together(f"{part}, {kind}", of, generator)


if __name__ == "__main__":
    main()
