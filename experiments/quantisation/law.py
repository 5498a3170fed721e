"""A small law of what rounding costs, from the rows of measure.py: ``python experiments/quantisation/law.py FILE ...``.

For each model and part: difference = a * 2**(-c bits) * R**p, by least squares of logarithms, with 90% intervals from
resampled sequences. Settings whose cost is not above two standard errors are shown but not fitted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

RESAMPLES = 500


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


if __name__ == "__main__":
    main()
