"""The learning rate over a run, and the loss that follows it: an annealing-aware law of one run.

While the rate is high a run pays for it with noise in the loss, which the decay removes. With eta the rate as a
fraction of the peak and S the sum of eta over the steps so far, as a share of the whole run's,

    L = c + A S^-alpha + B eta.

A constant rate leaves the power law of S alone; a cooldown takes B away while S stops growing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, shown

KINDS = ("cosine", "wsd", "linear", "constant")


def rate_factor(
    kind: str, step: int, steps: int, *, warmup_steps: int = 0, cooldown: float = 0.2, final: float = 0.0
) -> float:
    """Return the learning rate at ``step`` (from 0) of a run of ``steps``, as a fraction of the peak rate."""
    warm = min(1.0, (step + 1) / (warmup_steps + 1)) if warmup_steps else 1.0
    if kind == "constant":
        return warm
    if kind == "cosine":
        shape = 0.5 * (1 + math.cos(math.pi * step / steps))
    else:
        share = 1.0 if kind == "linear" else cooldown
        shape = min(1.0, (steps - step) / max(1, math.ceil(share * steps)))
    return warm * (final + (1 - final) * shape)


@dataclass(frozen=True)
class RateSchedule:
    """The learning rate of a run of so many steps."""

    steps: int
    kind: str = "cosine"
    warmup_steps: int = 0
    cooldown: float = 0.2
    """Share of a "wsd" run in which the rate falls."""
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"`schedule` is {shown(self.kind)}; choose from {', '.join(KINDS)}")
        if self.steps < 1:
            raise InputError(f"`steps` is {self.steps}; it should be 1 or more")

    def factors(self) -> FloatArray:
        """Return the rate of every step, as a fraction of the peak."""
        return np.array(
            [
                rate_factor(
                    self.kind, step, self.steps, warmup_steps=self.warmup_steps, cooldown=self.cooldown,
                    final=self.final,
                )
                for step in range(self.steps)
            ]
        )  # fmt: skip


def annealed_loss(values: Any, share: Any, rate: Any) -> FloatArray:
    """Return c + A S^-alpha + B eta for the values c, ln A, ln alpha, ln B."""
    c, log_A, log_alpha, log_B = values
    decay = np.exp(log_A) * np.asarray(share, dtype=np.float64) ** -np.exp(log_alpha)
    return np.asarray(c + decay + np.exp(log_B) * np.asarray(rate))
