"""The law file: what ``ScalingLaw.save`` writes and people write by hand."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from loopscale.core.errors import InputError
from loopscale.core.schemas import File, Record, parse
from loopscale.scaling.form import outer_law
from loopscale.scaling.law import SCHEMA
from loopscale.scaling.mappings import mapping
from loopscale.scaling.points import Counting, Units
from loopscale.scaling.trust import FittedRange, Spread

Span = tuple[float | None, float | None]


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

    @model_validator(mode="after")
    def _ordered(self) -> RangeRecord:
        self.build()
        return self

    def build(self) -> FittedRange:
        """Return the range, which checks itself."""
        return FittedRange(**{axis: span for axis, span in self if span is not None})


class ExpressionRecord(Record):
    """An outer law that is written out instead of named."""

    expression: str
    """Like "c + A/N**alpha + B/D**beta"."""
    bounds: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """The range that a fit searches for each coefficient."""
    extension: Literal["repetition", "excess", "overfit"] | None = None
    """Further coefficients for tokens that are seen several times."""


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
    """What a reader should know about the law."""
    fitted: bool = False
    """Whether loopscale fitted it; otherwise it is published or written by hand."""
    degenerate: tuple[str, ...] = ()
    """Why the data do not determine the coefficients; empty for a sound law."""
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


def read_law(data: object, where: str) -> dict[str, Any]:
    """Return the arguments of ``ScalingLaw`` that a file gives; ``where`` names the file in errors."""
    if isinstance(data, dict) and data.get("schema") == 1:
        data = _from_version_1(data)
    file = parse(LawFile, data, where)
    values: dict[str, Any] = dict(file)
    values["fitted_range"] = values.pop("range").build()
    try:
        values["outer"] = outer_law(file.outer if isinstance(file.outer, str) else file.outer.model_dump())
        values["mapping"] = mapping(file.mapping)
        values["units"] = Units(**file.units.model_dump())
        values["spread"] = None if file.spread is None else Spread(**file.spread.model_dump())
    except InputError as error:
        raise error.within(where) from None
    return values


def _from_version_1(data: dict[str, Any]) -> dict[str, Any]:
    """Return a law file of version 1, which told by fixed words in ``source`` and ``note`` what has fields now."""
    source, note = data.get("source", ""), data.get("note", "")
    if not (isinstance(source, str) and isinstance(note, str)):
        return data  # refused as any other wrong field
    parts, word = note.split("; "), "degenerate: "
    return data | {
        "fitted": source.startswith("fitted to "),
        "degenerate": [part.removeprefix(word) for part in parts if part.startswith(word)],
        "note": "; ".join(part for part in parts if not part.startswith(word)),
    }
