"""Scaling laws in closed form: recurrence mappings, outer laws, published coefficient sets, and costs."""

from loopscale import make_callable
from loopscale.laws.expressions import Law
from loopscale.laws.forms import (
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
from loopscale.laws.law import (
    AXES,
    BILLIONS,
    RAW,
    Counting,
    FittedRange,
    Points,
    ScalingLaw,
    Spread,
    Trust,
    Units,
    inputs,
)
from loopscale.laws.published import (
    DEFAULT,
    PAPER,
    PUBLISHED,
    find_law,
    laws,
    published,
    with_repetition,
    with_uncertainty,
)

make_callable(__name__, laws)

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
