"""Training budgets of a sweep: which rows share one, and weights with which each budget counts alike."""

from __future__ import annotations

import numpy as np

from loopscale.core.arrays import FloatArray, IntArray

SAME_BUDGET = 0.12
"""Runs whose ln C differs by less from the next lower one share its budget."""
WIDEST = 0.25
"""Decades of compute that one budget spans at most; where compute has no steps, budgets are bins of this width."""


def budgets(flops: FloatArray) -> list[IntArray]:
    """Return the rows of each budget, from the smallest budget up."""
    order = np.argsort(flops, kind="stable")
    cuts = np.flatnonzero(np.diff(np.log(flops[order])) > SAME_BUDGET) + 1
    return [np.asarray(rows) for rows in np.split(order, cuts)]


def balanced_weights(flops: FloatArray, weight: FloatArray | None) -> tuple[FloatArray, int]:
    """Return weights whose sum is the same for each budget, one on average, and the number of budgets.

    ``weight`` holds weights that the rows have already; they then count within a budget.
    """
    weights = np.ones(len(flops)) if weight is None else weight.astype(float)
    groups = [part for rows in budgets(flops) for part in _bins(rows, np.log10(flops))]
    for rows in groups:
        weights[rows] = weights[rows] / weights[rows].sum()
    return weights * len(flops) / len(groups), len(groups)


def _bins(rows: IntArray, log_flops: FloatArray) -> list[IntArray]:
    """Cut rows that span more than one budget does into bins of equal width."""
    at = log_flops[rows]
    if np.ptp(at) <= WIDEST:
        return [rows]
    count = int(np.ceil(np.ptp(at) / WIDEST))
    which = np.minimum(((at - at.min()) / np.ptp(at) * count).astype(int), count - 1)
    return [rows[which == k] for k in np.unique(which)]
