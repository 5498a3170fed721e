"""Number of seed pairs needed to detect a difference between two recipes."""

from __future__ import annotations

import numpy as np

from loopscale.core.errors import InputError

MOST_PAIRS = 10_000


def pairs_needed(difference: float, spread: float, *, power: float = 0.8, level: float = 0.05) -> int:
    """Return how many pairs of seeds a two-sided paired t-test needs to find ``difference`` with that ``power``.

    ``spread`` is the standard deviation of the paired difference between two recipes over seeds, in the same unit.
    """
    _check_pairs(difference, spread, power, level)
    low, high = 1, 2
    while _paired_power(high, difference / spread, level) < power:
        low, high = high, 2 * high
        if high > MOST_PAIRS:
            raise InputError(
                f"a difference of {difference:g} at a spread of {spread:g} needs over {MOST_PAIRS:,} pairs"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _paired_power(middle, difference / spread, level) >= power else (middle, high)
    return high


def _paired_power(pairs: int, effect: float, level: float) -> float:
    from scipy import stats

    shift, limit = effect * np.sqrt(pairs), stats.t.ppf(1 - level / 2, pairs - 1)
    return float(stats.nct.sf(limit, pairs - 1, shift) + stats.nct.cdf(-limit, pairs - 1, shift))


def _check_pairs(difference: float, spread: float, power: float, level: float) -> None:
    for name, value in (("difference", difference), ("spread", spread)):
        if not (np.isfinite(value) and value > 0):
            raise InputError(f"`{name}` is {value:g}", remedy="it should be above zero")
    for name, value in (("power", power), ("level", level)):
        if not 0 < value < 1:
            raise InputError(f"`{name}` is {value:g}", remedy="it should be between 0 and 1")
