"""Say how far runs that were trained again are from those that ship."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean


def within(about: str, differences: Mapping[str, float], mean: float, one: float) -> bool:
    """Print the mean and the largest difference in nats, by run, and tell whether both are within their limits."""
    worst = max(differences, key=lambda run: abs(differences[run]))
    average = fmean(differences.values())
    passed = abs(average) <= mean and abs(differences[worst]) <= one
    print(
        f"{about}: mean difference {average:+.5f} nats, largest {differences[worst]:+.5f} ({worst}); "
        f"{'within' if passed else 'NOT within'} {mean:.3f} and {one:.3f}"
    )
    return passed
