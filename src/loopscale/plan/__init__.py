"""Budgets in, ranked admissible designs out."""

from loopscale import make_callable
from loopscale.plan.budget import PEAK_FLOPS, Budget, Rule, device_flops, like
from loopscale.plan.grid import Grid, Space, architecture_space, continuous_space, evaluate, ladder_space, width_space
from loopscale.plan.plan import Candidate, Plan, plan
from loopscale.plan.predict import Prediction, predict
from loopscale.plan.profiles import (
    choice_span,
    experts_map,
    isoflop_over_experts,
    isoflop_over_recurrence,
    isoflop_over_size,
    joint_optimum,
    recurrence_map,
)

__all__ = [
    "PEAK_FLOPS",
    "Budget",
    "Candidate",
    "Grid",
    "Plan",
    "Prediction",
    "Rule",
    "Space",
    "architecture_space",
    "choice_span",
    "continuous_space",
    "device_flops",
    "evaluate",
    "experts_map",
    "isoflop_over_experts",
    "isoflop_over_recurrence",
    "isoflop_over_size",
    "joint_optimum",
    "ladder_space",
    "like",
    "plan",
    "predict",
    "recurrence_map",
    "width_space",
]

make_callable(__name__, plan)
