"""Runs that could be trained next, with what each costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from loopscale.architecture import RUNG_EXPERTS, RUNGS, Architecture, rung
from loopscale.arrays import FloatArray, IntArray
from loopscale.errors import InputError
from loopscale.fit.datasets import stacked
from loopscale.fit.observations import Observations
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
