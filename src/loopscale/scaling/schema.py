"""The law file: what ``ScalingLaw.save`` writes and people write by hand."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from loopscale.core.errors import shown
from loopscale.core.schemas import File, Record
from loopscale.scaling.law import SCHEMA
from loopscale.scaling.points import Counting


def _ordered(span: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    low, high = span
    if low is not None and high is not None and low > high:
        raise ValueError(f"found {shown([low, high])}; the lowest comes first")
    return span


Span = Annotated[tuple[float | None, float | None], AfterValidator(_ordered)]


class UnitsRecord(Record):
    """How many parameters and tokens make one unit of N and D in the coefficients."""

    parameters: float
    tokens: float


class RangeRecord(Record):
    """The span of each axis that the law was fitted on: [lowest, highest], null where unknown."""

    size: Span | None = None
    """Active parameters, counted as ``counts`` says."""
    tokens: Span | None = None
    experts: Span | None = None
    recurrence: Span | None = None
    epochs: Span | None = None
    """Tokens per unique token, for laws of repeated data."""


class ExpressionRecord(Record):
    """An outer law that is written out instead of named."""

    expression: str
    """Like "c + A/N**alpha + B/D**beta"."""
    bounds: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """The range that a fit searches for each coefficient."""


class SpreadRecord(Record):
    """What predictive intervals add to the uncertainty of the coefficients: standard deviations of ln loss."""

    noise: float = Field(ge=0)
    """Of a run about the law, within the range of the data."""
    growth: float = Field(ge=0)
    """Of the law's error one decade of training compute beyond the data."""
    frontier: float = Field(gt=0)
    """Largest training compute in the data, in FLOPs."""
    backtests: int = Field(default=0, ge=0)
    """Backtests inside the sweep that growth rests on."""
    within: float | None = Field(default=None, ge=0)
    """The part of the noise within a run; the rest is between runs. None where the data have one row a run."""


class LawFile(File):
    """A scaling law: the names of its parts and its coefficients."""

    KIND, VERSION = "law", SCHEMA

    name: str
    source: str = ""
    """Where the coefficients come from."""
    note: str = ""
    outer: str | ExpressionRecord
    """The outer law, loss from N, D and E: a name, or an expression."""
    mapping: str
    """The recurrence mapping: what R passes are worth."""
    coefficients: dict[str, float]
    """Every coefficient of the two, by name. Exponents are negative: L = A N^alpha + B D^beta + c."""
    units: UnitsRecord
    counts: Counting
    """Whether parameter counts include embeddings."""
    rmse: float | None = Field(default=None, ge=0)
    """Root-mean-square error of the fit, in nats."""
    noise: float | None = Field(default=None, ge=0)
    """Robust standard deviation of the losses about the law, in nats."""
    spread: SpreadRecord | None = None
    range: RangeRecord = RangeRecord()
    resamples: list[list[float]] | None = None
    """Coefficients of refits on resampled data, one row each."""
    resampled_by: str = ""
    """How the resamples were made, where that matters to a reader: "a simulated sweep"."""
