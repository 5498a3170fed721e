"""Number of seed pairs needed to detect a difference between two recipes."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from loopscale.core.errors import InputError
from loopscale.core.numerics import student_quantile

MOST_PAIRS = 10_000


def pairs_needed(difference: float, spread: float, *, power: float = 0.8, level: float = 0.05) -> int:
    """Return how many pairs of seeds a two-sided paired t-test needs to find ``difference`` with that ``power``.

    ``spread`` is the standard deviation of the paired difference between two recipes over seeds, in the same unit.
    """
    _check_pairs(difference, spread, power, level)
    from scipy.stats import nct

    def power_of(pairs: int) -> float:
        shift, limit = difference / spread * np.sqrt(pairs), student_quantile(1 - level, pairs - 1)
        return float(nct.sf(limit, pairs - 1, shift) + nct.cdf(-limit, pairs - 1, shift))

    most = 2
    while power_of(most) < power:  # the distribution is not accurate for far more pairs than are needed
        most *= 2
        if most > MOST_PAIRS:
            raise InputError(
                f"a difference of {difference:g} at a spread of {spread:g} needs over {MOST_PAIRS:,} pairs",
                remedy="reduce the spread, or look for a larger difference",
            )
    return bisect_left(range(most + 1), power, lo=max(most // 2, 2), key=power_of)


def _check_pairs(difference: float, spread: float, power: float, level: float) -> None:
    for name, value in (("difference", difference), ("spread", spread)):
        if not (np.isfinite(value) and value > 0):
            raise InputError(f"`{name}` is {value:g}", remedy="it should be above zero")
    for name, value in (("power", power), ("level", level)):
        if not 0 < value < 1:
            raise InputError(f"`{name}` is {value:g}", remedy="it should be between 0 and 1")
