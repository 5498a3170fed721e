"""Passes that grow during training: the schedule that a plan may recommend for its choice.

The model stays the one that was chosen: its size and its experts. Its passes may start lower and end at any number that
the limits allow, at the same compute, priced by the token-averaged N_unroll. What a schedule is worth follows the delay
law of ``loopscale.scaling.growth``, which was measured on dense models that grow from two passes to four.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from loopscale.core.errors import InputError
from loopscale.planning.design import Design
from loopscale.scaling import ScalingLaw, costs
from loopscale.scaling.growth import PassSchedule, one_step, scheduled_loss

if TYPE_CHECKING:
    from loopscale.planning.searching import Search

LAST_SHARES = tuple(share / 20 for share in range(1, 13))
"""Shares of the tokens with the last passes that are tried: round numbers, since the loss is flat near its minimum."""
MEASURED = ((2, 4),)
"""First and last passes of the growth that was measured; any other is an extrapolation."""


@dataclass(frozen=True)
class Growth:
    """A schedule of passes that grows once, for the model of a plan at the same compute."""

    schedule: tuple[tuple[float, int], ...]
    """Stages: the share of the steps at which each starts, and its passes; ``[schedule] recurrence`` of a run."""
    mean_passes: float
    """Averaged over the tokens: the R that sets the compute."""
    tokens: float
    train_flops: float
    """6 D times the token-averaged N_unroll."""
    loss: float
    saved: float
    """Below the loss of the plan's choice, which has one number of passes throughout."""
    measured: bool
    """Whether growth between these passes was measured, on dense models; otherwise it is extrapolated."""

    def design(self, choice: Design) -> Design:
        """Return the choice as it is trained by the schedule: its last passes, its tokens and its loss."""
        passes = int(self.schedule[-1][1])
        return replace(choice, recurrence=passes, tokens=self.tokens, loss=self.loss, train_flops=self.train_flops)


def best_schedule(search: Search) -> Growth | None:
    """Return the schedule of one growth step with the lowest loss for a plan's model; None where none gains eps."""
    budget, choice, grid = search.budget, search.choice, search.grid
    _check(search.law, budget.tokens)
    s, k, _ = np.unravel_index(search.chosen, grid.space.shape)
    within = np.broadcast_to(grid.within(), grid.tokens_FSKP.shape)[0, s, k]
    # The model is used with its last passes, which have to meet every limit.
    last_passes = [int(passes) for passes in grid.space.recurrences[within] if passes > 1]
    schedules = [schedule for last in last_passes for schedule in one_step(range(1, last), last, LAST_SHARES)]
    if not schedules:
        return None
    trained = [_trained(search, schedule) for schedule in schedules]
    best = min(range(len(schedules)), key=lambda index: trained[index][0])
    schedule, (loss, tokens) = schedules[best], trained[best]
    saved = choice.loss - loss
    if saved < grid.eps:
        return None
    stages = tuple((round(start, 4), int(passes)) for start, passes in schedule.stages)
    flops = float(costs.train_flops(costs.unrolled(choice.active, choice.loop, schedule.mean), tokens))
    measured = tuple(passes for _, passes in stages) in MEASURED and choice.experts == 1
    return Growth(stages, schedule.mean, tokens, flops, loss, saved, measured)


def _check(law: ScalingLaw, tokens: float | None) -> None:
    if not law.mapping.loops:
        raise InputError(
            f"law {law.name} has no term for passes, so it cannot say what growing them is worth",
            field="grow",
            remedy="choose a law with recurrence",
        )
    if tokens is not None:
        raise InputError(
            "`grow` compares schedules at equal compute, and `tokens` leaves the compute open",
            remedy="give the compute instead",
        )


def _trained(search: Search, schedule: PassSchedule) -> tuple[float, float]:
    """Return the loss and the tokens of the choice where it is trained by a schedule at the same compute."""
    law, budget, choice = search.law, search.budget, search.choice
    mean, final = (costs.unrolled(choice.active, choice.loop, passes) for passes in (schedule.mean, schedule.final))
    serving = float(costs.inference_flops(final)) * (budget.serve_tokens or 0.0)
    tokens = max(float(costs.tokens_for(search.spent_flops - serving, mean)), 1.0)
    if budget.max_tokens is not None:
        tokens = min(tokens, budget.max_tokens)
    sizes = {name: getattr(choice, name) for name in ("active", "experts", "loop", "total", "embedding")}
    points = law.points(tokens=tokens, recurrence=1.0, unique_tokens=budget.unique_tokens, **sizes)
    return float(scheduled_loss(law, points, schedule)), tokens
