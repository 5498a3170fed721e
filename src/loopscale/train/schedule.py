"""What depends on the step of a run: the learning rate, the recurrence, and what runs of two lengths share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from loopscale.scaling import annealing

if TYPE_CHECKING:  # the model needs torch, and commands that only plan a sweep do not load it
    from loopscale.model import LoopedMoEConfig
    from loopscale.train.config import TrainConfig
    from loopscale.train.sections.optimizer import ScheduleSection


def rate_factor(schedule: ScheduleSection, step: int, steps: int) -> float:
    """Return the learning rate at ``step`` (from 0) of a run of ``steps``, as a fraction of the peak rate."""
    return annealing.rate_factor(
        schedule.kind, step, steps, warmup_steps=schedule.warmup_steps, cooldown=schedule.cooldown,
        final=schedule.final,
    )  # fmt: skip


def scheduled_recurrence(schedule: ScheduleSection, step: int, steps: int) -> int | None:
    """Return R at ``step`` (from 0) of a run of ``steps``; None where the schedule leaves it to the model."""
    reached = [passes for start, passes in schedule.recurrence if step >= round(start * steps)]
    return reached[-1] if reached else None


def shared_steps(schedule: ScheduleSection, steps: int) -> int:
    """Return how many of its first steps a run of ``steps`` shares with any longer run of the same schedule."""
    changes = [steps, *(round(start * steps) for start, _ in schedule.recurrence[1:])]
    if schedule.kind == "constant":
        return min(steps, *changes)
    return min(cooldown_start(schedule, steps), *changes) if schedule.kind == "wsd" else 0


def cooldown_start(schedule: ScheduleSection, steps: int) -> int:
    """Return the step at which the cooldown of a "wsd" run of ``steps`` starts.

    Up to this step it is the same run as any longer one, which is why many D can share a trunk.
    """
    return steps - math.ceil(schedule.cooldown * steps)


def recurrence_shares(config: TrainConfig, model: LoopedMoEConfig) -> dict[int, float]:
    """Return the fraction of a run's steps at each R: scheduled, expected of the draws, or the model's own."""
    shares: dict[int, float] = {}
    for mean, share in (scheduled_passes(config) or {model.recurrence: 1.0}).items():
        for passes, chance in _draws(model.random_recurrence, mean).items():
            shares[passes] = shares.get(passes, 0.0) + chance * share
    return shares


def scheduled_passes(config: TrainConfig) -> dict[int, float]:
    """Return the fraction of a run's steps at each R of its schedule; empty where R is not scheduled."""
    stages = config.schedule.recurrence or ()
    ends = [round(start * config.steps) for start, _ in stages[1:]] + [config.steps]
    shares: dict[int, float] = {}
    for (start, passes), end in zip(stages, ends, strict=False):
        shares[passes] = shares.get(passes, 0.0) + (end - round(start * config.steps)) / config.steps
    return shares


def _draws(kind: str | None, mean: int) -> dict[int, float]:
    """Return the probability of each R, as the training step draws it."""
    if kind is None:
        return {mean: 1.0}
    if kind == "uniform":
        return dict.fromkeys(range(1, mean + 1), 1 / mean)
    rate = mean - 1
    if not rate:
        return {1: 1.0}
    return {1 + n: math.exp(n * math.log(rate) - rate - math.lgamma(n + 1)) for n in range(8 * mean + 8)}
