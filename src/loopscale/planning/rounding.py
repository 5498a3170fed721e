"""What weights in fewer bits cost in loss: a small law through our own measurements, for plans that ask for it.

cost = a x 2^(-c bits) x (D / N)^g: a model that has read more tokens for each of its parameters loses more. The
recurrence is not in it, because on text the cost does not depend on R (docs/rounding.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from loopscale.core.quantities import bits_of

MEASURED = (
    # tokens for each parameter, bits, cost in nats, its standard error
    (0.15, 4, 0.0028, 0.0012),  # 3.3M after 0.5M tokens, means of two seeds at R = 1, then at R = 4
    (0.15, 4, 0.0019, 0.0013),
    (0.15, 3, 0.0111, 0.0022),
    (0.15, 3, 0.0096, 0.0023),
    (0.59, 4, 0.0060, 0.0013),  # 0.85M, the same
    (0.59, 4, 0.0063, 0.0015),
    (0.59, 3, 0.0235, 0.0023),
    (0.59, 3, 0.0254, 0.0026),
    (2.34, 4, 0.0076, 0.0016),  # 0.21M, the same
    (2.34, 4, 0.0061, 0.0017),
    (2.34, 3, 0.0376, 0.0027),
    (2.34, 3, 0.0337, 0.0030),
    (1.07, 6, 0.0020, 0.0008),  # a model of 0.28M after 0.3M tokens at R = 1, and at R = 4 where two values follow
    (1.07, 4, 0.0078, 0.0021),
    (1.07, 4, 0.0069, 0.0019),
    (1.07, 3, 0.0362, 0.0036),
    (1.07, 3, 0.0336, 0.0038),
    (16.2, 6, 0.002, 0.001),  # the demo model, the same
    (16.2, 4, 0.023, 0.005),
    (16.2, 4, 0.026, 0.005),
    (16.2, 3, 0.141, 0.009),
    (16.2, 3, 0.160, 0.010),
    (14_900, 6, 0.016, 0.003),  # SmolLM2-135M with ten looped layers, at R = 1 and 2
    (14_900, 6, 0.021, 0.003),
    (14_900, 4, 0.270, 0.019),
    (14_900, 4, 0.242, 0.016),
)
"""Rounding all projections in blocks of 32 weights without training for it (experiments/quantisation)."""
LEAST_ERROR = 0.1
"""Relative error of a measurement at least: a few texts differ from all text by more than from each other."""
WHOLE = 16
"""From so many bits on nothing is counted."""


@dataclass(frozen=True)
class RoundingCost:
    """Nats that rounded weights add to the loss, with a 90% interval for one model."""

    bits: float
    cost: float
    low: float
    high: float


def rounding_cost(bits: float | str, tokens: float, parameters: float) -> RoundingCost:
    """Return what weights of so many bits cost a model of ``parameters`` after ``tokens``; zero from 16 bits on."""
    number = bits_of(bits)
    if number >= WHOLE:
        return RoundingCost(number, 0.0, 0.0, 0.0)
    solution, covariance, scatter = _law()
    row = _row(tokens / parameters, number)
    middle, spread = float(row @ solution), 1.645 * float(np.sqrt(row @ covariance @ row + scatter**2))
    cost, low, high = (float(np.exp(value)) for value in (middle, middle - spread, middle + spread))
    return RoundingCost(number, cost, low, high)


def _row(ratio: float, bits: float) -> np.ndarray:
    return np.array([1.0, -bits * np.log(2), np.log(ratio)])


@cache
def _law() -> tuple[np.ndarray, np.ndarray, float]:
    """Return ln a, c and g, their covariance, and the scatter of models about the law in ln cost."""
    rows = np.array([_row(ratio, bits) for ratio, bits, _, _ in MEASURED])
    costs, errors = np.array([row[2:] for row in MEASURED]).T
    weight = 1 / np.maximum(errors / costs, LEAST_ERROR)
    solution, *_ = np.linalg.lstsq(rows * weight[:, None], np.log(costs) * weight, rcond=None)
    missed = np.square((np.log(costs) - rows @ solution) * weight).sum() / (len(rows) - rows.shape[1])
    scatter = float(np.sqrt(missed * len(rows) / np.square(weight).sum()))
    return solution, np.linalg.inv((rows * np.square(weight)[:, None]).T @ rows) * max(1.0, missed), scatter


def rounding_text(cost: RoundingCost, loss: float) -> str:
    """Say what rounding costs, and the loss with it."""
    interval = f"90%: {cost.low:.3f} to {cost.high:.3f}"
    return (
        f"about {cost.cost:+.3f} nats at {cost.bits:g} bits ({interval}), so {loss + cost.cost:.3f}; a law of "
        "six models of 0.2M to 135M parameters"
    )
