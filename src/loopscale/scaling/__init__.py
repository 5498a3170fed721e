"""Scaling laws in closed form: recurrence mappings, outer laws, published coefficient sets, and costs."""

from loopscale.scaling.expressions import Law
from loopscale.scaling.forms import (
    MAPPINGS,
    OUTER_LAWS,
    Coefficient,
    Form,
    Inputs,
    OuterLaw,
    RecurrenceMapping,
    Role,
    Term,
    effective_experts,
    mapping,
    outer_law,
)
from loopscale.scaling.law import AXES, FittedRange, ScalingLaw, Spread, Trust, inputs
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

__all__ = [
    "AXES",
    "BILLIONS",
    "DEFAULT",
    "MAPPINGS",
    "OUTER_LAWS",
    "PAPER",
    "PUBLISHED",
    "RAW",
    "Coefficient",
    "Counting",
    "FittedRange",
    "Form",
    "Inputs",
    "Law",
    "OuterLaw",
    "Points",
    "RecurrenceMapping",
    "Role",
    "ScalingLaw",
    "Spread",
    "Term",
    "Trust",
    "Units",
    "effective_experts",
    "find_law",
    "inputs",
    "laws",
    "mapping",
    "outer_law",
    "published",
    "with_repetition",
    "with_uncertainty",
]
