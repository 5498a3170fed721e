"""The plan file, its schema made from the record's own fields."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

from pydantic import Field

from loopscale.core.errors import InputError
from loopscale.core.records import file_of
from loopscale.core.schemas import parse
from loopscale.planning.cluster import ClusterCost
from loopscale.planning.growing import Growth
from loopscale.planning.plans import SCHEMA, Plan

ANEW = "make it anew with `loopscale plan --out`"


PlanFile = file_of(
    Plan,
    "plan",
    SCHEMA,
    names={"ClusterCost": ClusterCost, "Growth": Growth},
    binding=(list[str], Field([], description="Limits that would lower the loss if they were looser.")),
    sentences=(dict[str, str], Field({}, description="The plan in sentences, by subject.")),
)
"""A plan, as ``loopscale plan --json`` prints it and ``Plan.save`` writes it."""


def read_plan(data: object, where: str) -> dict[str, Any]:
    """Return the fields of a plan once they are checked; a file of another version is refused."""
    if isinstance(data, dict) and data.get("kind") == "plan" and data.get("schema") == 1:
        raise InputError("this plan was written by loopscale 0.2 or earlier", where=where, remedy=ANEW)
    try:
        read = parse(PlanFile, _filled(data), where)
    except InputError as error:
        if not isinstance(data, dict) or (data.get("kind"), data.get("schema")) != ("plan", SCHEMA):
            raise
        raise InputError(error.problem, where=error.where, field=error.field, remedy=ANEW) from None
    assert isinstance(data, dict)
    values = {field.name: getattr(read, field.name) for field in fields(Plan)}
    for name in ("rivals", "candidates"):
        rows = zip(values[name], data.get(name, ()), strict=True)
        # JSON has no infinity, which is the loss of a design that the budget leaves no token to train on.
        values[name] = tuple(replace(design, loss=math.inf) if row["loss"] is None else design for design, row in rows)
    return values


def _filled(data: object) -> object:
    """Return a plan with a number where JSON has null for the loss of a design that cannot be trained."""
    if not isinstance(data, dict):
        return data
    filled = dict(data)
    for name in ("candidates", "rivals"):
        if isinstance(data.get(name), list):
            filled[name] = [
                {**row, "loss": 0.0} if isinstance(row, dict) and row.get("loss", 0.0) is None else row
                for row in data[name]
            ]
    return filled
