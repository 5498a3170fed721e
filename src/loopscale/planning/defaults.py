"""What a plan searches where the user leaves it open."""

from __future__ import annotations

from loopscale.architecture import RUNG_EXPERTS, RUNG_RECURRENCES, RUNGS, Space, ladder_space
from loopscale.architecture.space import size_space
from loopscale.scaling import ScalingLaw
from loopscale.scaling.variables import fixed_experts, fixed_recurrence


def experts_for(law: ScalingLaw) -> tuple[float, ...]:
    """Return the expert counts to search by default: the ladder's, or the only one that the law answers for."""
    only = fixed_experts(law)
    return RUNG_EXPERTS if only is None else (only,)


def recurrences_for(law: ScalingLaw) -> tuple[int, ...]:
    """Return the recurrences to search by default: the ladder's, or the only one that the law answers for."""
    only = fixed_recurrence(law)
    return RUNG_RECURRENCES if only is None else (only,)


def default_space(law: ScalingLaw) -> Space:
    """Return the default search space: the paper's ladder, or bare sizes for a law of size and tokens."""
    experts, recurrences = experts_for(law), recurrences_for(law)
    if experts == recurrences == (1,):
        return size_space()
    return ladder_space(tuple(RUNGS), experts, recurrences, free=("size", "experts", "recurrence"))
