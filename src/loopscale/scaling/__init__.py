"""Scaling laws in closed form: recurrence mappings, outer laws, published coefficient sets, and costs."""

from loopscale.scaling.annealing import RateSchedule, annealed_loss, rate_factor
from loopscale.scaling.at_test_time import FIXED, RANDOM, AtTestTime, at_test_time
from loopscale.scaling.coefficients import Coefficient, Role, Term
from loopscale.scaling.expressions import Expression
from loopscale.scaling.form import Form, inputs, outer_law
from loopscale.scaling.frontier import Cost, Frontier, above_optimum, lowest
from loopscale.scaling.general import GeneralConditional, GeneralRecurrence, exponent
from loopscale.scaling.growth import (
    GrowthChoice,
    PassSchedule,
    best_growth,
    scheduled_flops,
    scheduled_gain,
    scheduled_loss,
)
from loopscale.scaling.law import ScalingLaw
from loopscale.scaling.mappings import MAPPINGS, RecurrenceMapping, mapping
from loopscale.scaling.optimum import Allocation, allocations, compute_optimal, leverage
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
from loopscale.scaling.repetition import StoredOverfit
from loopscale.scaling.trust import AXES, TRUST_LEVELS, FittedRange, LawForecast, Spread, Trust, tails

__all__ = [
    "AXES",
    "BILLIONS",
    "DEFAULT",
    "DENSE",
    "FIXED",
    "MAPPINGS",
    "OUTER_LAWS",
    "PAPER",
    "PUBLISHED",
    "RANDOM",
    "RAW",
    "TRUST_LEVELS",
    "Allocation",
    "AtTestTime",
    "Coefficient",
    "Cost",
    "Counting",
    "Expression",
    "FittedRange",
    "Form",
    "Frontier",
    "GeneralConditional",
    "GeneralRecurrence",
    "GrowthChoice",
    "Inputs",
    "LawForecast",
    "OuterLaw",
    "PassSchedule",
    "Points",
    "Proportions",
    "Provenance",
    "RateSchedule",
    "Reading",
    "RecurrenceMapping",
    "Role",
    "ScalingLaw",
    "Spread",
    "StoredOverfit",
    "Term",
    "Trust",
    "Units",
    "above_optimum",
    "allocations",
    "annealed_loss",
    "at_test_time",
    "best_growth",
    "compute_optimal",
    "effective_experts",
    "exponent",
    "find_law",
    "inputs",
    "laws",
    "leverage",
    "lowest",
    "mapping",
    "outer_law",
    "published",
    "rate_factor",
    "scheduled_flops",
    "scheduled_gain",
    "scheduled_loss",
    "tails",
    "with_repetition",
    "with_uncertainty",
]
