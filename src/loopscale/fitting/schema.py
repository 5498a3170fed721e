"""The fit file: what ``Fit.save`` writes."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from loopscale.core.schemas import File, Record
from loopscale.fitting.ladder import LadderScore
from loopscale.fitting.resample import Scheme
from loopscale.fitting.result import KIND, SCHEMA
from loopscale.fitting.search import Recipe
from loopscale.scaling import Counting
from loopscale.scaling.schema import ReadingRecord


class DataRecord(Record):
    """The observations that the law was fitted to."""

    columns: dict[str, list[Any]]
    """By name, as in a table of runs."""
    source: str
    counts: Counting
    """Whether parameter counts include embeddings."""
    notes: list[str]
    counts_assumed: bool = False
    """Whether the counting was assumed, as the table did not state it."""
    name: str = ""
    """What the sweep is called."""
    numbers: list[int] | None = None
    """The line or row of the source that each row comes from."""
    number_unit: str = "row"
    """What ``numbers`` count: line or row."""
    skipped: list[str] = Field(default_factory=list)
    """What was left out on reading."""
    columns_used: dict[str, str] = Field(default_factory=dict)
    """The column of the table that each quantity was read from."""
    warnings: list[tuple[str, str]] = Field(default_factory=list)
    """What looked wrong in the table, and what to do about it."""
    named_runs: bool = True
    """Whether the table names its runs."""
    reading: ReadingRecord = Field(default_factory=ReadingRecord)
    """Where the rows come from and how they were read."""


class NoiseRecord(Record):
    """Standard deviations of ln loss about the law; null where the data do not separate the parts."""

    new_run: float
    between_runs: float | None
    within_run: float | None


class FitFile(File):
    """A fitted law with its data, its resamples and how it was found."""

    KIND, VERSION = KIND, SCHEMA

    law: dict[str, Any]
    """As in a law file."""
    data: DataRecord
    objective: float
    delta: float | None = Field(default=None, gt=0)
    """Where the Huber loss becomes linear; null: never."""
    recipe: Recipe
    starts: int = Field(ge=0)
    seed: int = Field(default=0, ge=0)
    """Of the random starts and resamples."""
    agreeing: int = Field(ge=0)
    """Starts that ended in the same optimum."""
    free: list[str]
    """Coefficients that were fitted."""
    at_bound: list[str]
    degenerate: list[str]
    """Reasons why the data do not determine the law."""
    fixed: dict[str, float]
    bounds: dict[str, tuple[float, float]]
    tie: dict[str, str]
    """Coefficients that were held equal to another."""
    scheme: Scheme | None = None
    """How the data were resampled."""
    ladder: list[LadderScore] = Field(default_factory=list)
    """The forms that were tried; empty where the full one suits the data."""
    coefficients: dict[str, float] | None = None
    """Those of the law, for readers of the file; so are the fields below."""
    intervals: dict[str, tuple[float, float]] | None = None
    """The 90% interval of each coefficient over the resampled laws."""
    rmse: float | None = None
    """In nats."""
    r_squared: float | None = None
    """The share of the losses' variance that the law explains."""
    noise: NoiseRecord | None = None
    warnings: list[str] = Field(default_factory=list)
    """What a reader of the fit must know, each in a sentence."""
