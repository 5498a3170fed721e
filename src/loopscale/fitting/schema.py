"""The fit file: what ``Fit.save`` writes."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from loopscale.core.schemas import File, Record
from loopscale.fitting.fitting import SCHEMA, Recipe
from loopscale.fitting.solver import Scheme
from loopscale.scaling import Counting


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


class FitFile(File):
    """A fitted law with its data, its resamples and how it was found."""

    KIND, VERSION = "fit", SCHEMA

    law: dict[str, Any]
    """As in a law file."""
    data: DataRecord
    objective: float
    delta: float | None = Field(default=None, gt=0)
    """Where the Huber loss becomes linear; null: never."""
    recipe: Recipe
    starts: int = Field(ge=0)
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
