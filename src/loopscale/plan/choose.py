"""The lowest loss within each of many limits, for many laws at once."""

from __future__ import annotations

import numpy as np

from loopscale.arrays import FloatArray, IntArray

SLACK = 1 + 1e-12
"""A design that needs exactly the limit fits, whatever the last digit of its arithmetic says."""


def agreement(picks_Z: IntArray) -> FloatArray:
    """Return the share of resampled laws that choose as the law itself does, which comes first; NaN without any."""
    if len(picks_Z) == 1:
        return np.full(picks_Z.shape[1:], np.nan)
    return np.asarray((picks_Z[1:] == picks_Z[0]).mean(axis=0))


def best_within(loss: FloatArray, cost_C: FloatArray, limits_B: FloatArray) -> IntArray:
    """Return, for every limit, the candidate of lowest loss whose cost is within it; -1 where there is none.

    ``loss`` is (..., C) and infinite where a candidate is ruled out; the answer is (..., B). Candidates are put in
    the order of their cost, so that one running minimum serves all limits.
    """
    order = np.argsort(cost_C, kind="stable")
    ranked = loss[..., order]
    lowest = np.minimum.accumulate(ranked, axis=-1)
    before = np.concatenate([np.full((*lowest.shape[:-1], 1), np.inf), lowest[..., :-1]], axis=-1)
    place = np.maximum.accumulate(np.where(ranked < before, np.arange(len(order)), -1), axis=-1)
    within = np.searchsorted(cost_C[order], limits_B * SLACK, side="right")
    last = place[..., np.maximum(within - 1, 0)]
    return np.where((within > 0) & (last >= 0), order[np.maximum(last, 0)], -1)
