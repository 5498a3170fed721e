"""Units of counts: raw numbers, millions, billions, detected from magnitudes where nothing states them."""

from __future__ import annotations

from itertools import product

import numpy as np

from loopscale.core.arrays import FloatArray

UNIT_NAMES = {1.0: "raw counts", 1e3: "thousands", 1e6: "millions", 1e9: "billions", 1e12: "trillions"}
_CANDIDATES = (1.0, 1e9, 1e6)
"""On a tie billions win: the unit of the paper and of most tables."""
_WRITTEN = {1.0: (1e4, np.inf), 1e3: (1.0, 1e6), 1e6: (5.0, 3e3), 1e9: (0.0, 1e3), 1e12: (0.0, 10.0)}
_WRITTEN_TOKENS = {1.0: (1e6, np.inf), 1e3: (1e2, 1e7), 1e6: (1e3, 1e6), 1e9: (0.1, 3e4), 1e12: (0.05, 100.0)}
"""What people write in each unit."""


def detect_units(
    active: FloatArray, tokens: FloatArray, known_active: float | None = None, known_tokens: float | None = None
) -> tuple[float, float]:
    """Return the likeliest units of N and D, given those already known.

    Judged by the sizes of real models, by the numbers people write, and by tokens per parameter.
    """
    N, D = float(np.median(active)), float(np.median(tokens))
    pairs = product(
        _CANDIDATES if known_active is None else (known_active,),
        (*_CANDIDATES, 1e12) if known_tokens is None else (known_tokens,),
    )
    return min(pairs, key=lambda pair: (_implausible(N, D, *pair), pair[1] == 1e12))


def size_unit(values: FloatArray, active: FloatArray, unit: float) -> float:
    """Return the unit of another size of the same models: that of N_act, unless it is out of all proportion to it."""

    def apart(candidate: float) -> float:
        return abs(float(np.log10(np.median(values) * candidate / np.median(active))))

    return unit if apart(unit) < 3 else min(_CANDIDATES, key=apart)


def _implausible(N: float, D: float, unit_N: float, unit_D: float) -> float:
    """Return by how many powers of ten a reading leaves what is usual."""
    return (
        _outside(N, *_WRITTEN[unit_N])
        + _outside(D, *_WRITTEN_TOKENS[unit_D])
        + _outside(N * unit_N, 3e4, 1e13)
        + _outside(D * unit_D / (N * unit_N), 5.0, 5e3)
    )


def _outside(value: float, low: float, high: float) -> float:
    if value < low:
        return float(np.log10(low / value))
    return float(np.log10(value / high)) if value > high else 0.0
