"""The law file: what ``ScalingLaw.save`` writes and people write by hand."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.records import built, record_of
from loopscale.core.schemas import File, Record, parse
from loopscale.scaling.form import outer_law
from loopscale.scaling.frontier import Frontier, StatedCost
from loopscale.scaling.law import GROUPED, GROUPED_SCHEMA, SCHEMA
from loopscale.scaling.mappings import mapping
from loopscale.scaling.points import Counting, Units
from loopscale.scaling.proportions import Proportions
from loopscale.scaling.provenance import Provenance, Reading
from loopscale.scaling.trust import FittedRange, Span, Spread

NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]

UnitsRecord = record_of(Units)
RangeRecord = record_of(FittedRange, {"Span": Span | None})
SpreadRecord = record_of(
    Spread, {"int": Natural}, noise=NotNegative, growth=NotNegative, frontier=Positive, within=NotNegative | None
)
ProportionsRecord = record_of(
    Proportions,
    experts=Annotated[float, Field(ge=1)],
    recurrence=Annotated[float, Field(ge=1)],
    loop_share=Annotated[float, Field(ge=0, le=1)],
    m=Annotated[float, Field(gt=0, le=1)],
)
CostRecord = record_of(StatedCost, factor=Positive, smallest=Positive, largest=Positive)
FrontierRecord = record_of(
    Frontier,
    {"int": Natural},
    flops=Positive,
    size=Positive | None,
    models=ProportionsRecord,
    cost=CostRecord,
    noise=NotNegative | None,
)
ReadingRecord = record_of(Reading, units=dict[str, Positive])
ProvenanceRecord = record_of(Provenance, reading=ReadingRecord, rows=Natural)


class ExpressionRecord(Record):
    """An outer law that is written out instead of named."""

    expression: str
    """Like "c + A/N**alpha + B/D**beta"."""
    bounds: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """The range that a fit searches for each coefficient."""
    extension: str | None = None
    """Further coefficients for tokens that are seen several times."""


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
    units: UnitsRecord  # type: ignore[valid-type]
    counts: Counting
    """Whether parameter counts include embeddings."""
    rmse: float | None = Field(default=None, ge=0)
    """Root-mean-square error of the fit, in nats."""
    noise: float | None = Field(default=None, ge=0)
    """Robust standard deviation of the losses about the law, in nats."""
    spread: SpreadRecord | None = None  # type: ignore[valid-type]
    frontier: FrontierRecord | None = None  # type: ignore[valid-type]
    range: RangeRecord = RangeRecord()  # type: ignore[valid-type]
    resamples: list[list[float]] | None = None
    """Coefficients of refits on resampled data, one row each."""
    resampled_by: str = ""
    """How the resamples were made, where that matters to a reader: "a simulated sweep"."""
    provenance: ProvenanceRecord | None = None  # type: ignore[valid-type]
    """The data behind a fitted law and how they were read."""


class OffsetFormRecord(Record):
    """One way in which groups may differ, and how well it predicts."""

    offsets: str
    coefficients: int = Field(ge=1)
    error: float = Field(ge=0)
    """Root-mean-square error of ln loss on held-out runs."""
    chosen: bool = False


class GroupedLawFile(File):
    """Laws of several groups of runs that share their exponents: what ``fit --group`` saves."""

    KIND, VERSION = GROUPED, GROUPED_SCHEMA

    column: str
    """The column that names the group of each run."""
    offsets: str
    """In what the groups differ."""
    forms: list[OffsetFormRecord] = Field(default_factory=list)
    """What was tried."""
    laws: dict[str, dict[str, Any]] = Field(min_length=1)
    """By group, each as in a law file."""


def _of_group(data: object, where: str, group: str | None) -> tuple[object, str]:
    """Return one law of a file of several, and where it stands; another file is returned as it is."""
    if not isinstance(data, dict) or data.get("kind") != GROUPED:
        if group is not None:
            raise InputError("this law has no groups", where=where, field="group", remedy="leave `group` out")
        return data, where
    file = parse(GroupedLawFile, data, where)
    names = ", ".join(file.laws)
    if group is None:
        raise InputError(
            f"it holds a law for each group of {file.column}", where=where, field="group",
            remedy=f"say which with `group`: {names}",
        )  # fmt: skip
    if group not in file.laws:
        raise InputError(
            f"there is no group {shown(group)}{nearest(group, file.laws)}", where=where, field="group",
            remedy=f"groups of {file.column} are {names}",
        )  # fmt: skip
    return file.laws[group], f"{where}: group {group}"


def read_law(data: object, where: str, group: str | None = None) -> dict[str, Any]:
    """Return the arguments of ``ScalingLaw`` that a file gives; ``where`` names the file in errors.

    ``group`` is needed for a file that holds the laws of several groups.
    """
    data, where = _of_group(data, where, group)
    if isinstance(data, dict) and data.get("schema") == 1:
        data = _from_version_1(data)
    file = parse(LawFile, data, where)
    values: dict[str, Any] = {name: built(value) for name, value in file}
    values["fitted_range"] = values.pop("range")
    try:
        values["outer"] = outer_law(file.outer if isinstance(file.outer, str) else file.outer.model_dump())
        values["mapping"] = mapping(file.mapping)
    except InputError as error:
        raise error.within(where) from None
    return values


def _from_version_1(data: dict[str, Any]) -> dict[str, Any]:
    """Return a law file of version 1, which states in fixed words of ``source`` and ``note`` what has fields now."""
    source, note = data.get("source", ""), data.get("note", "")
    if not (isinstance(source, str) and isinstance(note, str)):
        return data  # refused as any other wrong field
    parts, word = note.split("; "), "degenerate: "
    return data | {
        "fitted": source.startswith("fitted to "),
        "degenerate": [part.removeprefix(word) for part in parts if part.startswith(word)],
        "note": "; ".join(part for part in parts if not part.startswith(word)),
    }
