"""The plan file: its fields and their types, for this version and 0.1."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loopscale.errors import InputError, nearest, shown
from loopscale.files import versioned
from loopscale.plan.plan import SCHEMA, Candidate


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Vote(_Strict):
    """How many resampled laws choose a design."""

    design: str
    share: float = Field(ge=0, le=1)


class TrustFields(_Strict):
    """How far the prediction can be trusted."""

    level: Literal["inside", "near", "far", "beyond"]
    reasons: list[str]
    factors: dict[str, float]


class PlanFile(_Strict):
    """A plan, as ``loopscale plan --json`` prints it and ``Plan.save`` writes it. Version 0.1 lacks the later fields."""

    kind: Literal["plan"]
    schema_: int = Field(alias="schema")
    law: str
    rule: Literal["paper", "loss"]
    eps: float = Field(ge=0)
    budget: dict[str, float | None]
    choice: Candidate
    lead: float | None
    agreement: float | None
    votes: list[Vote]
    rivals: list[Candidate]
    candidates: list[Candidate]
    candidates_in_all: int
    pareto: dict[str, list[dict[str, float | str | None]]]
    interval: dict[str, float | str] | None = None
    trust: TrustFields | None = None
    edge: list[dict[str, Any]] = []
    binding: list[str] = []
    sensitivities: list[dict[str, float | str]] = []
    next_best: dict[str, float | str] | None = None
    unspent_flops: float = 0.0
    sentences: dict[str, str] = {}


def read_plan(data: object, where: str) -> dict[str, Any]:
    """Return the content of a plan file, checked; what is wrong is said in one sentence."""
    versioned(data, where, "plan", SCHEMA)
    try:
        PlanFile.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{where}: {_sentence(error)}; write it again with `loopscale plan --out`") from None
    assert isinstance(data, dict)
    return data


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown field {shown(field)}{nearest(field, PlanFile.model_fields)}"
    return f"field {field!r}: {first['msg'].lower()}"
