"""IsoFLOP parabolas (Chinchilla's approach 2): the best size at each training budget, and how it grows.

Runs of one budget are fitted by a parabola of the loss in ln N; its lowest point is N*(C). No law is assumed along N,
but the parabola is: where the curve is lopsided, wide ranges of N shift its lowest point.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray, IntArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import counted, format_count
from loopscale.core.tables import Table
from loopscale.fitting.data.budgets import budgets
from loopscale.fitting.data.observations import Observations
from loopscale.scaling import costs, tails

FEWEST = 4
"""Sizes that a budget needs: one more than a parabola has coefficients."""
WINDOW = 30.0
"""Sizes further than this factor from the best run say little about the lowest point."""
DRAWS = 1000


@dataclass(frozen=True)
class IsoFlopBudget:
    """One training budget and the lowest point of its parabola."""

    flops: float
    rows: int
    size: float
    """N* in parameters; NaN where the parabola has no lowest point."""
    size_low: float
    size_high: float
    loss: float
    """The loss at N*."""
    reason: str
    """Why the budget is left out of the exponents; empty where it is used."""


@dataclass(frozen=True)
class IsoFlop:
    """The best sizes of all budgets, and N* ~ C^a, D* ~ C^b through them."""

    budgets: tuple[IsoFlopBudget, ...]
    size_exponent: float
    """a"""
    size_exponent_interval: tuple[float, float]
    token_exponent: float
    """b = 1 - a"""
    token_exponent_interval: tuple[float, float]
    size_at_one: float
    """N* at C = 1 FLOP, which makes N*(C) = size_at_one C^a."""
    level: float
    source: str

    def optimal_size(self, flops: Any) -> FloatArray:
        """Return N*(C) on the fitted power of C."""
        return np.asarray(self.size_at_one * np.asarray(flops, float) ** self.size_exponent)

    def table(self) -> Table:
        """Return one row for each budget: flops, rows, size, its interval, tokens, loss and why it is left out."""
        return Table.from_records(
            [
                {
                    "flops": budget.flops,
                    "rows": budget.rows,
                    "size": budget.size,
                    "size_low": budget.size_low,
                    "size_high": budget.size_high,
                    "tokens": float(costs.tokens_for(budget.flops, budget.size)),
                    "loss": budget.loss,
                    "left_out": budget.reason,
                }
                for budget in self.budgets
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "source": self.source,
            "level": self.level,
            "size_exponent": self.size_exponent,
            "size_exponent_interval": list(self.size_exponent_interval),
            "token_exponent": self.token_exponent,
            "token_exponent_interval": list(self.token_exponent_interval),
            "budgets": list(self.table().records()),
        }

    def __repr__(self) -> str:
        used = sum(not budget.reason for budget in self.budgets)
        low, high = self.size_exponent_interval
        return f"<IsoFlop of {used} budgets: N* ~ C^{self.size_exponent:.3f} ({low:.3f} to {high:.3f})>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(repr(self)[1:-1])}</p>{self.table()._repr_html_()}"


def isoflop(data: Any, *, level: float = 0.9, seed: int = 0) -> IsoFlop:
    """Fit a parabola to each training budget of ``data`` (a path, a frame or Observations), and N* ~ C^a to all.

    Intervals come from resampled residuals of the parabolas. Budgets are left out, with the reason, where they have
    fewer than four sizes or their lowest point is not between the smallest and the largest size.
    """
    observations = Observations.of(data)
    points = observations.points
    if np.ptp(points.experts) > 0 or np.ptp(points.recurrence) > 0:
        raise InputError(
            "rows differ in experts (E) or recurrence (R); an isoFLOP curve compares sizes of one design",
            where=observations.source, remedy="keep one E and one R, as with `keep` \"E == 1 and R == 1\"",
        )  # fmt: skip
    ends = tails(level)
    random = np.random.default_rng(seed)
    results = [_budget(points.active, points.train_flops, observations.loss, rows, ends, random)
               for rows in budgets(points.train_flops)]  # fmt: skip
    used = [(budget, draws) for budget, draws in results if not budget.reason]
    if len(used) < 2:
        reasons = Counter(budget.reason for budget, _ in results if budget.reason).most_common(1)
        why = f" (most others: {reasons[0][0]})" if reasons else ""
        raise InputError(
            "isoFLOP curves need two training budgets with a lowest loss between their sizes; "
            f"{len(used)} of {counted(len(results), 'budget')} here {'has' if len(used) == 1 else 'have'} one{why}",
            where=observations.source, remedy="give four sizes or more at each of several budgets",
        )  # fmt: skip
    log_C = np.log([budget.flops for budget, _ in used])
    slope, offset = _line(log_C, np.log([[budget.size for budget, _ in used]]))
    slopes, _ = _line(log_C, np.stack([draws for _, draws in used], axis=1))
    low, high = (float(end) for end in np.quantile(slopes, ends))
    a = float(slope[0])
    return IsoFlop(
        budgets=tuple(budget for budget, _ in results),
        size_exponent=a,
        size_exponent_interval=(low, high),
        token_exponent=1 - a,
        token_exponent_interval=(1 - high, 1 - low),
        size_at_one=float(np.exp(offset[0])),
        level=level,
        source=observations.source,
    )


def _budget(
    N: FloatArray,
    C: FloatArray,
    loss: FloatArray,
    rows: IntArray,
    ends: tuple[float, float],
    random: np.random.Generator,
) -> tuple[IsoFlopBudget, FloatArray]:
    """Return one budget and draws of ln N* from its resampled residuals; ``ends`` are the quantiles of the interval."""
    flops = float(np.exp(np.log(C[rows]).mean()))
    best = N[rows][np.argmin(loss[rows])]
    near = rows[np.abs(np.log(N[rows] / best)) <= np.log(WINDOW)]
    if len(np.unique(N[near])) < FEWEST:
        reason = f"{counted(len(np.unique(N[near])), 'size')}, {FEWEST} needed"
        return _left_out(flops, len(near), reason), np.empty(0)
    x = np.log(N[near])
    middle = float(x.mean())
    design = np.vander(x - middle, 3)
    fitted, *_ = np.linalg.lstsq(design, loss[near], rcond=None)
    residuals = (loss[near] - design @ fitted) * np.sqrt(len(near) / (len(near) - 3))
    drawn = design @ fitted + random.choice(residuals, (DRAWS, len(near)))
    coefficients = np.linalg.lstsq(design, drawn.T, rcond=None)[0]
    vertex = float(-fitted[1] / (2 * fitted[0]) + middle)
    if fitted[0] <= 0:
        return _left_out(flops, len(near), "its parabola has no lowest point"), np.empty(0)
    if not x.min() < vertex < x.max():
        side, edge = ("smallest", x.min()) if vertex <= x.min() else ("largest", x.max())
        reason = f"the loss is lowest beyond its {side} size, {format_count(float(np.exp(edge)))}"
        return _left_out(flops, len(near), reason), np.empty(0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # a resampled parabola may be a line
        draws = np.where(coefficients[0] > 0, -coefficients[1] / (2 * np.abs(coefficients[0])), 0.0) + middle
    draws = np.clip(draws, x.min(), x.max())
    low, high = np.exp(np.quantile(draws, ends))
    lowest = float(np.polyval(fitted, vertex - middle))
    return IsoFlopBudget(flops, len(near), float(np.exp(vertex)), float(low), float(high), lowest, ""), draws


def _left_out(flops: float, rows: int, reason: str) -> IsoFlopBudget:
    return IsoFlopBudget(flops, rows, float("nan"), float("nan"), float("nan"), float("nan"), reason)


def _line(x: FloatArray, y_SB: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return slope and offset of each row of ``y_SB`` on ``x``."""
    centred = x - x.mean()
    slope = y_SB @ centred / (centred @ centred)
    return slope, y_SB.mean(axis=1) - slope * x.mean()
