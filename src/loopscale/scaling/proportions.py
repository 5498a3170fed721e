"""The proportions of models of one kind, among which the compute-optimal size is searched."""

from __future__ import annotations

from dataclasses import dataclass

from loopscale.core.arrays import FloatArray
from loopscale.scaling import costs
from loopscale.scaling.points import Points


@dataclass(frozen=True)
class Proportions:
    """What models of one kind share, whatever their size: experts, passes, loop share and active ratio."""

    experts: float = 1.0
    """E"""
    recurrence: float = 1.0
    """R"""
    loop_share: float = 0.0
    """N_loop / N_act; above 0 where R is above 1."""
    m: float = 1.0
    """N_act / N_total"""

    def unroll(self) -> float:
        """Return N_unroll / N_act."""
        return float(costs.unrolled(1.0, self.loop_share, self.recurrence))

    def points(self, N: FloatArray, D: FloatArray) -> Points:
        """Return models of these proportions as a law takes them."""
        return Points(N, D, self.recurrence, self.experts, self.loop_share * N, N / self.m)


DENSE = Proportions()
