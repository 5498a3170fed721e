"""The closed forms, each in one place: recurrence mappings, outer laws and published coefficient sets."""

from loopscale.laws.forms import (
    MAPPINGS,
    OUTER_LAWS,
    Coefficient,
    OuterLaw,
    RecurrenceMapping,
    effective_experts,
    mapping,
    outer_law,
)
from loopscale.laws.law import AXES, BILLIONS, RAW, Counting, FittedRange, Points, ScalingLaw, Units
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
