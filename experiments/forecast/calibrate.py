"""The constants of the forecast's interval: by maximum likelihood on public sweeps, each scored without itself.

    LOOPSCALE_DATA=… python experiments/forecast/calibrate.py

The splits are those of ``evaluate.py``: every sweep cut at several computes, and by folds. Errors of ln loss follow
Student's t with a scale that :func:`scale` states. Its four constants make the measured losses most likely; rows of
a split count as one together, and a sweep of many splits counts as the root of their number. Diverged runs, more than
half a nat of ln loss away, are left out. The last tables have every sweep forecast with the constants that the others
chose; the subsets of one laboratory are left out together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln

from evaluate import LEVELS, Split, splits, sweeps, table
from loopscale.core.arrays import FloatArray
from loopscale.core.numerics import student_quantile
from loopscale.scaling.frontier import closeness
from loopscale.scaling.trust import FORECAST_DEGREES, FORM_ERROR, FORM_POWER, OFF_FRONTIER

DIVERGED = 0.5
SHIPPED = FORM_ERROR, OFF_FRONTIER, FORM_POWER
START = np.log([3.0, 0.012, 0.1, 1.0])
"""ln of (degrees of freedom - 1), error one decade out, error as a share of the distance from the frontier, and the
power of the decades with which the first error grows."""
WEAK = 2e-3
"""Weight of a prior at the start values: it only keeps the search in bounds."""


def scale(row: Split, form_error: float, off_frontier: float, power: float) -> FloatArray:
    """Return the scale of each row's error, as ScalingLaw.forecast has it."""
    weight = closeness(row.above)
    return np.sqrt(
        weight * row.near_noise**2
        + (1 - weight) * row.noise**2
        + ((1 - weight / 2) * row.deviation) ** 2
        + (form_error * row.distance**power) ** 2
        + (off_frontier * row.above) ** 2
    )


def importance(rows: list[Split]) -> list[float]:
    """Return what each split counts for: one over the root of its sweep's cuts; folds together count as one cut."""
    cuts = {name: len({row.decades for row in rows if row.sweep == name}) for name in {row.sweep for row in rows}}
    folds = Counter(row.sweep for row in rows if not row.decades)
    return [cuts[row.sweep] ** -0.5 / (1 if row.decades else folds[row.sweep]) for row in rows]


def loss_of(values: FloatArray, rows: list[Split], weights: list[float]) -> float:
    """Return the mean negative log likelihood of the measured losses."""
    degrees, parts = 1 + np.exp(values[0]), np.exp(values[1:])
    constant = gammaln((degrees + 1) / 2) - gammaln(degrees / 2) - 0.5 * np.log(degrees * np.pi)
    total = counted = 0.0
    for row, weight in zip(rows, weights, strict=True):
        sound = np.abs(row.error) < DIVERGED
        if not sound.any():
            continue
        width = scale(row, *parts)[sound]
        z = row.error[sound] / width
        each = np.mean(np.log(width) - constant + (degrees + 1) / 2 * np.log1p(z**2 / degrees))
        total, counted = total + weight * float(each), counted + weight
    return total / counted


def constants(rows: list[Split]) -> tuple[float, float, float, float]:
    """Return the degrees of freedom and the three constants of the scale that make the losses most likely."""
    weights = importance(rows)

    def misfit(values: FloatArray) -> float:
        return loss_of(values, rows, weights) + WEAK * float(np.sum((values - START) ** 2))

    degrees, *parts = np.exp(minimize(misfit, START, tol=1e-4).x)
    return (float(1 + degrees), *map(float, parts))


def laboratory(name: str) -> str:
    """Return what is left out together: one sweep, or the subsets of one laboratory."""
    return name.split("-")[0] if name.startswith("nx-") else name


def show(name: str, degrees: float, form_error: float, off_frontier: float, power: float) -> None:
    """Print one line of constants."""
    growth = f"{form_error:.4f} x decades^{power:.2f}"
    print(f"{name:<34} degrees {degrees:.1f}, {growth}, {off_frontier:.3f} of the distance")


def main() -> None:
    """Print the constants of all sweeps, those without each one, and the table with the latter."""
    rows = list(splits(sweeps()))
    for row in rows:
        ours = student_quantile(0.9, FORECAST_DEGREES) * scale(row, *SHIPPED)
        np.testing.assert_allclose(ours, row.half[0.9], rtol=1e-6)  # the formula here is the product's
    show("all sweeps", *constants(rows))
    show("shipped", FORECAST_DEGREES, *SHIPPED)
    left_out: dict[str, list[Split]] = {"the most likely degrees of freedom": [], f"{FORECAST_DEGREES} of them": []}
    for name in sorted({laboratory(row.sweep) for row in rows}):
        degrees, *parts = constants([row for row in rows if laboratory(row.sweep) != name])
        show(f"without {name}", degrees, *parts)
        for row in rows:
            if laboratory(row.sweep) == name:
                width = scale(row, *parts)
                for part, used in zip(left_out.values(), (degrees, FORECAST_DEGREES), strict=True):
                    part.append(replace(row, half={k: student_quantile(k, used) * width for k in LEVELS}))
    for name, part in left_out.items():
        print(f"\nEvery sweep with the constants of the others, {name}:")
        table(part)


if __name__ == "__main__":
    main()
