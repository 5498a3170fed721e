"""The closed forms, each in one place: recurrence mappings, outer laws and published coefficient sets."""

from loopscale.laws.coefficients import Coefficient
from loopscale.laws.forms import OUTER_LAWS, OuterLaw, effective_experts, outer_law
from loopscale.laws.law import AXES, BILLIONS, RAW, Counting, FittedRange, ScalingLaw, Units
from loopscale.laws.mappings import MAPPINGS, RecurrenceMapping, mapping
from loopscale.laws.points import Points
from loopscale.laws.published import DEFAULT, PUBLISHED, find_law, published

__all__ = [
    "AXES",
    "BILLIONS",
    "DEFAULT",
    "MAPPINGS",
    "OUTER_LAWS",
    "PUBLISHED",
    "RAW",
    "Coefficient",
    "Counting",
    "FittedRange",
    "OuterLaw",
    "Points",
    "RecurrenceMapping",
    "ScalingLaw",
    "Units",
    "effective_experts",
    "find_law",
    "mapping",
    "outer_law",
    "published",
]
