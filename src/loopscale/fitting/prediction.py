"""Losses that a law predicts, with their intervals: what ``Fit.predict`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import count_of
from loopscale.core.tables import Table
from loopscale.scaling import Points, ScalingLaw


@dataclass(frozen=True, eq=False, repr=False)
class LossPrediction:
    """Forecast losses with two intervals: for a new run, and for the curve. Arrays, or numbers for one point."""

    points: Points
    value: FloatArray
    """The forecast in nats per token: the law's loss, moved to the frontier that its runs show."""
    low: FloatArray
    high: FloatArray
    """The predictive interval: where the loss of a new run should lie."""
    law_value: FloatArray
    """The loss on the fitted curve alone."""
    law_low: FloatArray
    law_high: FloatArray
    """The confidence band of the curve: where resampled laws put their loss."""
    level: float
    note: str = ""
    """How often tokens are seen, whose discount serves where the law has no term for that, and what lies beyond 10x."""

    def table(self) -> Table:
        """Return one row for each point."""
        p, shape = self.points, np.shape(self.value) or (1,)
        return Table.from_arrays(
            shape, N=p.active, D=p.tokens, E=p.experts, R=p.recurrence, loss=self.value, low=self.low,
            high=self.high, law=self.law_value, law_low=self.law_low, law_high=self.law_high,
        )  # fmt: skip

    def to_pandas(self) -> Any:
        """Return the table as a pandas data frame."""
        return self.table().to_pandas()

    def __repr__(self) -> str:
        if np.ndim(self.value):
            return f"<LossPrediction of {np.size(self.value)} losses with {self.level:.0%} intervals>"
        return (
            f"<LossPrediction {float(self.value):.4f} nats; {self.level:.0%} for a new run "
            f"{float(self.low):.4f} to {float(self.high):.4f}; the curve alone {float(self.law_value):.4f}, "
            f"{float(self.law_low):.4f} to {float(self.law_high):.4f}{f'; {self.note}' if self.note else ''}>"
        )

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def predict_loss(law: ScalingLaw, points: Points, level: float, note: str = "") -> LossPrediction:
    """Return the losses of a law at ``points``, with both intervals."""
    new_run, (low, high) = law.forecast(points, level), law.interval(points, level)
    return LossPrediction(points, new_run.loss, new_run.low, new_run.high, new_run.law, low, high, level, note)


def one_of_two(value: Any, other: Any, name: str, symbol: str) -> Any:
    """Return the one of two spellings that is given."""
    if value is not None and other is not None:
        raise InputError(f"`{name}` and `{symbol}` are the same", remedy="give one of them")
    return other if value is None else value


def read_counts(value: Any, what: str) -> Any:
    """Return counts as numbers; text like ``"7B"`` is read."""
    if isinstance(value, str):
        return count_of(value, what)
    if isinstance(value, list | tuple):
        return [read_counts(entry, what) for entry in value]
    return value
