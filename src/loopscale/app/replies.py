"""What the server answers, typed for its OpenAPI description."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from loopscale.plan import Candidate

Columns = dict[str, list[float | int | str | bool | None]]


class LawSummary(BaseModel):
    """A law without its resamples."""

    id: str = Field(description="What plans call it by.")
    name: str
    form: str
    source: str
    note: str
    outer: str
    mapping: str
    coefficients: dict[str, float]
    units: dict[str, float]
    counts: str
    rmse: float | None
    range: dict[str, list[float | None]]
    resamples: int = Field(description="How many resampled laws it carries.")


class Laws(BaseModel):
    """The published laws."""

    default: str
    laws: list[LawSummary]


class Choices(BaseModel):
    """What requests may choose from, and their limits."""

    version: str
    rungs: list[str]
    experts: list[float]
    recurrences: list[int]
    mappings: list[str]
    outer_laws: list[str]
    upload_bytes: int
    rows: int


class Vote(BaseModel):
    """How many resampled laws choose a design."""

    design: str
    share: float


class Plan(BaseModel):
    """A plan, as ``loopscale plan --json`` prints it."""

    kind: Literal["plan"]
    schema_: int = Field(alias="schema")
    law: str
    rule: str
    eps: float
    budget: dict[str, float | None]
    choice: Candidate
    lead: float | None
    agreement: float | None
    votes: list[Vote]
    rivals: list[Candidate]
    candidates: list[Candidate]
    candidates_in_all: int
    pareto: dict[str, list[dict[str, float | str]]]


class Words(BaseModel):
    """The plan in sentences, as ``loopscale plan`` prints them."""

    answer: str
    costs: str
    certainty: str
    legend: str


class PlanReply(BaseModel):
    """A plan with its words and the charts that were asked for."""

    plan: Plan
    words: Words
    charts: dict[str, Columns]


class Job(BaseModel):
    """Work that goes on after the answer: ask again with its id."""

    id: str
    kind: Literal["fit", "comparison", "design"]
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    stage: str = Field(description="What it does now, in a few words.")
    done: int
    total: int
    error: str | None = Field(description="Why it failed, in one sentence.")
    result: dict[str, Any] | None = Field(description="What it found, once it is done.")
