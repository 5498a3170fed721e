"""What a coefficient of a law is: its meaning, the range that a fit searches, the term and the role it has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Term(Enum):
    """The part of a law that a coefficient belongs to; data that do not vary along it cannot determine it."""

    SIZE = "size"
    DATA = "data"
    EXPERTS = "experts"
    RECURRENCE = "recurrence"
    REPETITION = "repetition"
    IRREDUCIBLE = "irreducible"


class Role(Enum):
    """What a coefficient does within its term."""

    SCALE = "scale"
    """How large the term is; its value depends on the units of N or D."""
    EXPONENT = "exponent"
    SHAPE = "shape"


@dataclass(frozen=True)
class Prior:
    """The value of a coefficient in other sweeps, for data that determine it poorly."""

    centre: float
    width: float
    """Standard deviation, of the logarithm for a coefficient that is searched in logarithm."""
    source: str
    """Where it comes from, for texts."""


@dataclass(frozen=True)
class Coefficient:
    """One coefficient of a form, described completely: no other code depends on its name.

    The range, the typical and the neutral value hold with counts in billions.
    """

    name: str
    lower: float
    """The range that a fit searches, unless the user gives another."""
    upper: float
    meaning: str
    term: Term
    role: Role = Role.SHAPE
    typical: float | None = None
    """Where a search starts; None where ``OuterLaw.typical`` sizes it by the data."""
    neutral: float | None = None
    """The value at which the effect is absent; None where there is none."""
    published_sign: int = 1
    """-1 where the literature prints the value with the other sign: A / N^0.34 is alpha = -0.34 here."""
    positive: bool = False
    """Whether the form needs it above zero."""
    prior: Prior | None = None
    """Pulls a fit towards a value, unless the recipe is without priors."""
