"""The learning rate as a pure function of the step, so that any step can be resumed and branches meet their trunk."""

from __future__ import annotations

import math

from loopscale.train.config import ScheduleSection


def rate_factor(schedule: ScheduleSection, step: int, steps: int) -> float:
    """Return the share of the highest rate at ``step``, counted from 0, of a run of ``steps``."""
    warm = min(1.0, (step + 1) / (schedule.warmup_steps + 1)) if schedule.warmup_steps else 1.0
    if schedule.kind == "constant":
        return warm
    if schedule.kind == "cosine":
        shape = 0.5 * (1 + math.cos(math.pi * step / steps))
    else:
        left = steps - step
        shape = min(1.0, left / max(1, steps - cooldown_start(schedule, steps)))
    return warm * (schedule.final + (1 - schedule.final) * shape)


def shared_steps(schedule: ScheduleSection, steps: int) -> int:
    """Return how many steps a run of ``steps`` has in common with any longer one of the same schedule."""
    if schedule.kind == "constant":
        return steps
    return cooldown_start(schedule, steps) if schedule.kind == "wsd" else 0


def cooldown_start(schedule: ScheduleSection, steps: int) -> int:
    """Return the step at which a "wsd" run of ``steps`` begins to cool down.

    Up to there it is the same run as any longer one, which is why many D can share a trunk.
    """
    return steps - math.ceil(schedule.cooldown * steps)
