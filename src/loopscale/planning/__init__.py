"""Budgets in, the best design and its reasons out."""

from loopscale.architecture import Space, architecture_space, continuous_space, ladder_space, size_space, width_space
from loopscale.planning.budget import FIELDS, Budget, budget_text
from loopscale.planning.cluster import Cluster, ClusterCost
from loopscale.planning.compute import device_flops, flops_of, training_cost
from loopscale.planning.design import Design, design_text
from loopscale.planning.device_search import search_on
from loopscale.planning.devices import DEVICES, PEAK_FLOPS, PRESETS, UTILISATION
from loopscale.planning.grid import Grid, Rule, design_label, evaluate
from loopscale.planning.matching import Matched, matched
from loopscale.planning.plans import Plan, plan
from loopscale.planning.predictions import Prediction, predict
from loopscale.planning.profiles import (
    choice_span,
    experts_map,
    isoflop_over_experts,
    isoflop_over_recurrence,
    isoflop_over_size,
    joint_optimum,
    recurrence_map,
)
from loopscale.planning.refusals import WithheldError
from loopscale.planning.searching import Search, law_of, search
from loopscale.planning.training_file import train_config, train_file

__all__ = [
    "DEVICES",
    "FIELDS",
    "PEAK_FLOPS",
    "PRESETS",
    "UTILISATION",
    "Budget",
    "Cluster",
    "ClusterCost",
    "Design",
    "Grid",
    "Matched",
    "Plan",
    "Prediction",
    "Rule",
    "Search",
    "Space",
    "WithheldError",
    "architecture_space",
    "budget_text",
    "choice_span",
    "continuous_space",
    "design_label",
    "design_text",
    "device_flops",
    "evaluate",
    "experts_map",
    "flops_of",
    "isoflop_over_experts",
    "isoflop_over_recurrence",
    "isoflop_over_size",
    "joint_optimum",
    "ladder_space",
    "law_of",
    "matched",
    "plan",
    "predict",
    "recurrence_map",
    "search",
    "search_on",
    "size_space",
    "train_config",
    "train_file",
    "training_cost",
    "width_space",
]
