"""Budgets in, the best design and its reasons out."""

from loopscale.planning.budget import FIELDS, PRESETS, Budget, budget_text
from loopscale.planning.design import Design, design_text
from loopscale.planning.grid import Grid, Rule, design_label, evaluate
from loopscale.planning.plans import Plan, plan
from loopscale.planning.refusals import WithheldError
from loopscale.planning.searching import Search, search
from loopscale.scaling import find_law as law_of

__all__ = [
    "FIELDS",
    "PRESETS",
    "Budget",
    "Design",
    "Grid",
    "Plan",
    "Rule",
    "Search",
    "WithheldError",
    "budget_text",
    "design_label",
    "design_text",
    "evaluate",
    "law_of",
    "plan",
    "search",
]
