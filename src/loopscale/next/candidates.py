"""Runs that could be trained next, with what each costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import Any

import numpy as np

from loopscale.architecture import RUNG_EXPERTS, RUNGS, Architecture, rung
from loopscale.arrays import FloatArray, IntArray
from loopscale.errors import InputError, shown
from loopscale.files import Fields
from loopscale.fit.data.public import stacked
from loopscale.fit.data.read import Observations
from loopscale.laws import Counting, Points

RECURRENCES = (1, 2, 3, 4, 6, 8)
TOKEN_LEVELS = 9


@dataclass(frozen=True, eq=False)
class RunCandidates:
    """Runs to choose from: one model, one recurrence and one token count each, seen once, at its end."""

    models: tuple[str, ...]
    points: Points
    """One-dimensional, counted as the law counts."""
    flops: FloatArray
    """Training compute of each, 6 N_unroll D (embeddings never counted)."""

    def __len__(self) -> int:
        return len(self.models)

    def where(self, chosen: IntArray) -> RunCandidates:
        """Return the chosen runs, in the order given."""
        p = self.points
        given = (p.active, p.tokens, p.recurrence, p.experts, p.loop_block, p.active / p.m)
        names = tuple(self.models[int(i)] for i in chosen)
        return RunCandidates(names, Points(*(value[chosen] for value in given)), self.flops[chosen])

    def label(self, i: int) -> str:
        """Name one run in a word."""
        p = self.points
        return f"{self.models[i]} E={p.experts[i]:g} R={p.recurrence[i]:g} D={p.tokens[i] / 1e9:.3g}B"


def run_candidates(
    models: Sequence[Architecture], recurrences: Sequence[int], tokens: Sequence[float], counts: Counting
) -> RunCandidates:
    """Return every run of ``models`` x ``recurrences`` x ``tokens``."""
    runs = list(product(models, recurrences, tokens))
    if not runs:
        raise InputError("no run to choose from; give at least one model, one recurrence and one token count")
    return RunCandidates(
        models=tuple(model.name for model, _, _ in runs),
        points=stacked(model.points(np.array([D]), R, counts) for model, R, D in runs),
        flops=np.array([float(model.train_flops_per_token(R)) * D for model, R, D in runs]),
    )


def ladder_candidates(
    observations: Observations,
    *,
    rungs: Sequence[str] = tuple(RUNGS),
    experts: Sequence[float] = RUNG_EXPERTS,
    recurrences: Sequence[int] = RECURRENCES,
    tokens: Sequence[float] | None = None,
) -> RunCandidates:
    """Return runs on the paper's ladder; tokens range from half the least to twice the most seen, unless given.

    Fewer tokens are cheaper still, but a law need not hold far below what it was fitted on.
    """
    if tokens is None:
        seen = observations.points.tokens
        tokens = np.geomspace(seen.min() / 2, seen.max() * 2, TOKEN_LEVELS).tolist()
    models = [rung(name, each) for name in rungs for each in experts]
    return run_candidates(models, recurrences, tokens, observations.counts)


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
