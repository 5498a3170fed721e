"""Scaling laws in closed form: recurrence mappings, outer laws, published coefficient sets, and costs."""

from loopscale.scaling.coefficients import Coefficient, Role, Term
from loopscale.scaling.expressions import Expression
from loopscale.scaling.extensions import StoredOverfit
from loopscale.scaling.form import Form, inputs, outer_law
from loopscale.scaling.frontier import Frontier, StatedCost, above_optimum, lowest
from loopscale.scaling.general import GeneralConditional, GeneralRecurrence, exponent
from loopscale.scaling.law import ScalingLaw
from loopscale.scaling.mappings import MAPPINGS, RecurrenceMapping, mapping
from loopscale.scaling.outer import OUTER_LAWS, Inputs, OuterLaw, effective_experts
from loopscale.scaling.points import BILLIONS, RAW, Counting, Points, Units
from loopscale.scaling.proportions import DENSE, Proportions
from loopscale.scaling.provenance import Provenance, Reading
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
from loopscale.scaling.trust import AXES, TRUST_LEVELS, FittedRange, LawForecast, Spread, Trust, tails

__all__ = [
    "AXES",
    "BILLIONS",
    "DEFAULT",
    "DENSE",
    "MAPPINGS",
    "OUTER_LAWS",
    "PAPER",
    "PUBLISHED",
    "RAW",
    "TRUST_LEVELS",
    "Coefficient",
    "Counting",
    "Expression",
    "FittedRange",
    "Form",
    "Frontier",
    "GeneralConditional",
    "GeneralRecurrence",
    "Inputs",
    "LawForecast",
    "OuterLaw",
    "Points",
    "Proportions",
    "Provenance",
    "Reading",
    "RecurrenceMapping",
    "Role",
    "ScalingLaw",
    "Spread",
    "StatedCost",
    "StoredOverfit",
    "Term",
    "Trust",
    "Units",
    "above_optimum",
    "effective_experts",
    "exponent",
    "find_law",
    "inputs",
    "laws",
    "lowest",
    "mapping",
    "outer_law",
    "published",
    "tails",
    "with_repetition",
    "with_uncertainty",
]
