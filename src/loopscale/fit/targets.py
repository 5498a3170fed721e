"""Where a law has to be right: given points, or a plan's choice and the designs that come near it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from loopscale.arrays import FloatArray
from loopscale.errors import InputError, shown
from loopscale.files import Fields
from loopscale.laws import Counting, Points

_LIMITS = ("serving", "memory", "inference", "compute")
"""What rules a design out for good: no run makes it affordable. A pass or more experts may yet turn out to pay."""


class Goal(Enum):
    """What the new runs should make certain."""

    PREDICTIONS = "predictions"
    """The mean variance of the losses at the target points."""
    CHOICE = "choice"
    """The mean variance of the loss differences between the first target point and the others."""


@dataclass(frozen=True, eq=False)
class Target:
    """Where the law has to be right."""

    points: Points
    """One-dimensional; for a choice, the chosen design comes first."""
    goal: Goal

    def __post_init__(self) -> None:
        if len(self.points.shape) != 1 or self.points.shape[0] < (2 if self.goal is Goal.CHOICE else 1):
            raise InputError(
                f"target: points have shape {self.points.shape}; give a list of them, and for a choice two or more"
            )

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any], counts: Counting, goal: Goal = Goal.CHOICE, rivals: int = 6) -> Target:
        """Take a plan's JSON: its choice, and the designs nearest to it in loss that no limit rules out."""
        choice = _listed(plan.get("choice"), "plan: choice")
        listed = {each.key: each for each in (*_list(plan, "rivals"), *_list(plan, "candidates"))}
        open_to = [each for each in listed.values() if each.ruled_out_by not in _LIMITS]
        near = sorted(
            (each for each in open_to if each.key != choice.key), key=lambda each: abs(each.loss - choice.loss)
        )
        if goal is Goal.CHOICE and not near:
            raise InputError("plan: it lists no rival of its choice; aim at its predictions instead")
        columns = zip(*(each.counted(counts) for each in (choice, *near[:rivals])), strict=True)
        return cls(Points(*(np.array(column) for column in columns)), goal)

    def rows(self, gradient: FloatArray) -> FloatArray:
        """Return the linear forms in the coefficients whose variance is to shrink."""
        return gradient[1:] - gradient[0] if self.goal is Goal.CHOICE else gradient


@dataclass(frozen=True)
class _Listed:
    """A design as a plan lists it: counts without embeddings."""

    active: float
    tokens: float
    recurrence: float
    experts: float
    loop: float
    total: float
    loss: float
    embedding: float
    ruled_out_by: str | None

    @property
    def key(self) -> tuple[float, ...]:
        return (self.active, self.total, self.experts, self.recurrence)

    def counted(self, counts: Counting) -> tuple[float, ...]:
        """Return the fields of a point, with embeddings counted or not."""
        extra = self.embedding if counts is Counting.WITH_EMBEDDINGS else 0.0
        return (self.active + extra, self.tokens, self.recurrence, self.experts, self.loop, self.total + extra)


def _listed(data: object, where: str) -> _Listed:
    fields = Fields(data, where)
    return _Listed(
        active=fields.take("active", float),
        tokens=fields.take("tokens", float),
        recurrence=fields.take("recurrence", float),
        experts=fields.take("experts", float),
        loop=fields.take("loop", float),
        total=fields.take("total", float),
        loss=fields.take("loss", float),
        embedding=fields.take("embedding", float, 0.0),
        ruled_out_by=fields.optional("ruled_out_by", str),
    )


def _list(plan: Mapping[str, Any], name: str) -> list[_Listed]:
    rows = plan.get(name, [])
    if not isinstance(rows, list):
        raise InputError(f"plan: field {name!r} is {shown(rows)}; it should be a list of designs")
    return [_listed(each, f"plan: {name}[{order}]") for order, each in enumerate(rows)]
