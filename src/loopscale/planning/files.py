"""The plan file: its fields and their types, for this version and 0.1."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from loopscale.core.errors import InputError
from loopscale.core.schemas import File, Record, parse
from loopscale.planning.plan import SCHEMA, Candidate


class VoteRecord(Record):
    """How many resampled laws choose a design."""

    design: str
    share: float = Field(ge=0, le=1)


class TrustRecord(Record):
    """How far the prediction can be trusted."""

    level: Literal["inside", "near", "far", "beyond"]
    reasons: list[str]
    factors: dict[str, float]
    """By axis: how many times beyond the fitted range, 1 inside it."""


class PlanFile(File):
    """A plan, as ``loopscale plan --json`` prints it and ``Plan.save`` writes it; version 0.1 lacks the last fields."""

    KIND, VERSION = "plan", SCHEMA

    law: str
    rule: Literal["paper", "loss"]
    eps: float = Field(ge=0)
    budget: dict[str, float | None]
    choice: Candidate
    lead: float | None
    """Loss that the choice saves over the best other admissible design."""
    agreement: float | None
    """Share of resampled laws under which the choice is within eps of the best."""
    votes: list[VoteRecord]
    rivals: list[Candidate]
    candidates: list[Candidate]
    candidates_in_all: int
    pareto: dict[str, list[dict[str, float | str | None]]]
    interval: dict[str, float | str] | None = None
    """The 90% interval of the loss, and what it rests on."""
    uncertainty: str = "not stored"
    """What the interval and the agreement rest on, or why there are none."""
    trust: TrustRecord | None = None
    edge: list[dict[str, Any]] = Field(default=[])
    """Axes on which the choice is the last value searched."""
    binding: list[str] = Field(default=[])
    """Limits of which twice as much would lower the loss."""
    sensitivities: list[dict[str, float | str]] = Field(default=[])
    """What twice as much of each limit would buy."""
    next_best: dict[str, float | str] | None = None
    """The better design that needs the least more than the limits allow."""
    unspent_flops: float = 0.0
    real_train_flops: dict[str, float] | None = None
    """Training FLOPs with output head, routers and attention, and with per-loop supervision."""
    kv_policies: list[dict[str, float | str]] = Field(default=[])
    """The best design for each way to keep keys and values."""
    sentences: dict[str, str] = Field(default={})


def read_plan(data: object, where: str) -> dict[str, Any]:
    """Return the content of a plan file once it is checked."""
    try:
        parse(PlanFile, _with_loss(data, 0.0), where)
    except InputError as error:
        if not isinstance(data, dict) or (data.get("kind"), data.get("schema")) != (PlanFile.KIND, SCHEMA):
            raise
        raise InputError(f"{error}; make the file anew with `loopscale plan --out`") from None
    read = _with_loss(data, math.inf)
    assert isinstance(read, dict)
    return read


def _with_loss(data: object, loss: float) -> object:
    """Return a plan with this loss where JSON has null: designs that serving leaves no compute to train."""
    if not isinstance(data, dict):
        return data
    filled = dict(data)
    for name in ("candidates", "rivals"):
        if isinstance(data.get(name), list):
            filled[name] = [
                {**row, "loss": loss} if isinstance(row, dict) and row.get("loss", 0.0) is None else row
                for row in data[name]
            ]
    return filled
