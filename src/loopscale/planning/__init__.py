"""Budgets in, ranked admissible designs out."""

from loopscale.architecture import Space, architecture_space, continuous_space, ladder_space, size_space, width_space
from loopscale.planning.devices import (
    DEVICES,
    PEAK_FLOPS,
    PLACES,
    PRESETS,
    device_flops,
    flops_of,
    generation_rate,
    training_cost,
)
from loopscale.planning.grid import Budget, Grid, Rule, design_label, evaluate
from loopscale.planning.plan import Candidate, Plan, plan
from loopscale.planning.predict import Matched, Prediction, matched, predict
from loopscale.planning.profiles import (
    choice_span,
    experts_map,
    isoflop_over_experts,
    isoflop_over_recurrence,
    isoflop_over_size,
    joint_optimum,
    recurrence_map,
)

__all__ = [
    "DEVICES",
    "PEAK_FLOPS",
    "PLACES",
    "PRESETS",
    "Budget",
    "Candidate",
    "Grid",
    "Matched",
    "Plan",
    "Prediction",
    "Rule",
    "Space",
    "architecture_space",
    "choice_span",
    "continuous_space",
    "design_label",
    "device_flops",
    "evaluate",
    "experts_map",
    "flops_of",
    "generation_rate",
    "isoflop_over_experts",
    "isoflop_over_recurrence",
    "isoflop_over_size",
    "joint_optimum",
    "ladder_space",
    "matched",
    "plan",
    "predict",
    "recurrence_map",
    "size_space",
    "training_cost",
    "width_space",
]
