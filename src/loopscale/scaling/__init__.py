"""Scaling laws in closed form: recurrence mappings, outer laws, published coefficient sets, and costs."""

from loopscale.scaling.coefficients import Coefficient, Role, Term
from loopscale.scaling.expressions import Expression
from loopscale.scaling.form import Form, inputs, outer_law
from loopscale.scaling.law import ScalingLaw
from loopscale.scaling.mappings import MAPPINGS, RecurrenceMapping, mapping
from loopscale.scaling.optimum import Allocation, Proportions, allocations, compute_optimal, leverage
from loopscale.scaling.outer import OUTER_LAWS, Inputs, OuterLaw, effective_experts
from loopscale.scaling.points import BILLIONS, RAW, Counting, Points, Units
from loopscale.scaling.published import (
    DEFAULT,
    PAPER,
    PUBLISHED,
    find_law,
    laws,
    published,
    with_repetition,
    with_uncertainty,
)
from loopscale.scaling.trust import AXES, TRUST_LEVELS, FittedRange, Spread, Trust, tails

__all__ = [
    "AXES",
    "BILLIONS",
    "DEFAULT",
    "MAPPINGS",
    "OUTER_LAWS",
    "PAPER",
    "PUBLISHED",
    "RAW",
    "TRUST_LEVELS",
    "Allocation",
    "Coefficient",
    "Counting",
    "Expression",
    "FittedRange",
    "Form",
    "Inputs",
    "OuterLaw",
    "Points",
    "Proportions",
    "RecurrenceMapping",
    "Role",
    "ScalingLaw",
    "Spread",
    "Term",
    "Trust",
    "Units",
    "allocations",
    "compute_optimal",
    "effective_experts",
    "find_law",
    "inputs",
    "laws",
    "leverage",
    "mapping",
    "outer_law",
    "published",
    "tails",
    "with_repetition",
    "with_uncertainty",
]
