"""Passes that change during training: what a schedule costs, and what the law gives it credit for.

A schedule is a list of stages, each the share of the tokens at which it starts and its passes, as the trainer's
``[schedule] recurrence`` has them: ``[[0, 2], [0.8, 4]]`` trains the last fifth with four passes. Its compute is that
of the token-averaged N_unroll. Its gain follows the passes with a delay: in a stage with R passes the gain G moves
towards g(R) as dG/dt = (g(R) - G) / delay, with t the share of the tokens and G = g(R) in the first stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, shown
from loopscale.scaling import costs
from loopscale.scaling.form import effective, inputs
from loopscale.scaling.law import ScalingLaw
from loopscale.scaling.points import Points

DELAY = 0.144
"""Share of the tokens after which 63% of a change of passes has come through: 0.125 to 0.166 at 90% on 162 runs that
grow from two to four passes (docs/evidence.md). Other changes of passes are an extrapolation."""


@dataclass(frozen=True)
class PassSchedule:
    """Stages of training with different passes through the loop."""

    stages: tuple[tuple[float, float], ...]
    """The share of the tokens at which each stage starts, and its passes."""

    def __init__(self, stages: Sequence[Sequence[float]]) -> None:
        object.__setattr__(self, "stages", tuple((float(start), float(passes)) for start, passes in stages))
        starts = [start for start, _ in self.stages]
        if not starts or starts[0] != 0 or any(b <= a for a, b in pairwise([*starts, 1.0])):
            raise InputError(
                f"`schedule` has stages at {shown(starts)}; the first starts at 0, the others later and before 1"
            )
        if any(passes < 1 for _, passes in self.stages):
            raise InputError(f"`schedule` has {shown([p for _, p in self.stages])} passes; each stage needs 1 or more")

    @property
    def shares(self) -> tuple[float, ...]:
        """Each stage's share of the tokens."""
        return tuple(b - a for a, b in pairwise([*(start for start, _ in self.stages), 1.0]))

    @property
    def mean(self) -> float:
        """Passes averaged over the tokens: the R that sets the training compute."""
        return sum(share * passes for share, (_, passes) in zip(self.shares, self.stages, strict=True))

    @property
    def final(self) -> float:
        """Passes of the last stage, with which the model is used."""
        return self.stages[-1][1]

    def credit(self, delay: float = DELAY) -> tuple[float, ...]:
        """Return the weight of each stage's gain in the gain of the trained model; they add up to 1."""
        weights = [1.0]
        for share in self.shares[1:]:
            stays = float(np.exp(-share / delay))
            weights = [weight * stays for weight in weights] + [1.0 - stays]
        return tuple(weights)


def scheduled_gain(law: ScalingLaw, points: Points, schedule: PassSchedule, delay: float = DELAY) -> FloatArray:
    """Return the gain of models trained by ``schedule``, in looped blocks; ``points.recurrence`` does not count."""
    gains = [law.gain(replace(points, recurrence=np.asarray(passes))) for _, passes in schedule.stages]
    weights = schedule.credit(delay)
    return np.asarray(sum(weight * gain for weight, gain in zip(weights, gains, strict=True)))


def scheduled_loss(law: ScalingLaw, points: Points, schedule: PassSchedule, delay: float = DELAY) -> FloatArray:
    """Return the loss of models trained by ``schedule`` and used with its final passes."""
    final = replace(points, recurrence=np.asarray(schedule.final))
    x = inputs(law.form, final, law.units)
    N = effective(x.N, x.loop, scheduled_gain(law, points, schedule, delay))
    return np.asarray(law.outer.loss_at(law.coefficients, N, x))


def scheduled_flops(points: Points, schedule: PassSchedule) -> FloatArray:
    """Return the training compute of ``schedule``: 6 D times the token-averaged N_unroll."""
    return np.asarray(costs.train_flops(costs.unrolled(points.active, points.loop, schedule.mean), points.tokens))


@dataclass(frozen=True)
class GrowthChoice:
    """A schedule that grows once, chosen for a training budget, beside the best fixed number of passes."""

    schedule: PassSchedule
    loss: float
    tokens: float
    fixed_passes: float
    fixed_loss: float
    """The lowest loss at the same compute with one number of passes throughout, from the passes considered."""


SHARES = np.linspace(0.0, 0.6, 61)
"""Shares of the tokens with the larger number of passes that are tried."""


def one_step(first: Iterable[float], last: float, shares: Iterable[float]) -> list[PassSchedule]:
    """Return the schedules that grow once to ``last`` passes, for so many ``shares`` of the tokens."""
    return [PassSchedule([[0, passes], [1 - share, last]]) for passes, share in product(first, shares)]


def best_growth(
    law: ScalingLaw, active: float, loop: float, flops: float, passes: Sequence[float] = (1, 2, 3, 4, 6), **rest: Any
) -> GrowthChoice:
    """Return the schedule of one growth step with the lowest loss for a model of given size and a training budget.

    ``rest`` goes to ``Points``: experts, total, unique_tokens.
    """

    def at(schedule: PassSchedule) -> tuple[float, float]:
        tokens = float(costs.tokens_for(flops, costs.unrolled(active, loop, schedule.mean)))
        points = Points(active, tokens, loop=loop, **rest)
        return float(scheduled_loss(law, points, schedule)), tokens

    fixed = {R: at(PassSchedule([[0, R]]))[0] for R in passes}
    grown = [schedule for last in passes for schedule in one_step([p for p in passes if p < last], last, SHARES[1:])]
    candidates = [PassSchedule([[0, R]]) for R in passes] + grown
    best = min(candidates, key=lambda schedule: at(schedule)[0])
    loss, tokens = at(best)
    least = min(fixed, key=lambda R: fixed[R])
    return GrowthChoice(best, loss, tokens, least, fixed[least])
