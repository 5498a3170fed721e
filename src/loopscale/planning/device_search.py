"""The search for the design that devices train best."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from loopscale.architecture import Space
from loopscale.core.errors import InputError
from loopscale.planning.budget import Budget
from loopscale.planning.cluster import Cluster
from loopscale.planning.defaults import default_space
from loopscale.planning.design import Design
from loopscale.planning.searching import Search, search
from loopscale.scaling import find_law

LONG = 1e15
"""Tokens of a run with whole batches."""
Overheads = dict[tuple[str, float, int], float]
"""By size, experts and recurrence: see ``Space.overheads``."""


def search_on(
    cluster: Cluster,
    budget: Budget | None = None,
    space: Space | None = None,
    law: Any = None,
    *,
    extrapolate: bool = False,
    allow_degenerate: bool = False,
    **options: Any,
) -> Search:
    """Search for the design that devices train best with ``real_flops``; arguments are those of ``search``.

    What a design takes beyond its arithmetic, such as recomputed blocks, depends on the design. It is computed for the
    designs that may be the best: those whose loss would be lowest if they took no more. Designs that the devices cannot
    train are left out, unless there are no others.
    """
    law = find_law(law)
    space, bare = default_space(law) if space is None else space, replace(law, resamples=None)

    def best(overheads: Overheads) -> Search:
        return search(
            budget, replace(space, overheads=overheads), bare, extrapolate=True, allow_degenerate=True, **options
        )

    overheads: Overheads = {}
    try:
        while _learn(cluster, best(overheads), overheads, only_fitting=True):
            pass
    except InputError:  # nothing is left
        overheads = {}
        while _learn(cluster, best(overheads), overheads, only_fitting=False):
            pass
    return search(
        budget, replace(space, overheads=overheads), law, extrapolate=extrapolate, allow_degenerate=allow_degenerate,
        **options,
    )  # fmt: skip


def _learn(cluster: Cluster, result: Search, overheads: Overheads, only_fitting: bool) -> bool:
    """Add the overheads of the designs that may be the best; return whether the choice has to be made again."""
    learnt = only_fitting and _leave_out(cluster, result, overheads)
    losses, usable, lowest = result.grid.loss_C, result.usable, np.inf
    for flat in result.ranked:
        if not usable[flat] or losses[flat] >= lowest:
            break
        design = result.design(int(flat))
        before = overheads.get(_key(design), 1.0)
        overhead, fits = cluster.overhead(design)
        overhead = overhead if fits or not only_fitting else np.inf
        if overhead > before * 1.001:  # it only rises, so that the search ends and the choice keeps within the hours
            overheads[_key(design)], learnt = overhead, True
        points = result.points(int(flat))
        if np.isfinite(overhead):
            tokens = np.maximum(points.tokens * min(1.0, before / overhead), 1.0)
            lowest = min(lowest, float(result.law(replace(points, tokens=tokens))))
    return learnt


def _leave_out(cluster: Cluster, result: Search, overheads: Overheads) -> bool:
    """Note the models that do not fit even without looping; return whether there are new ones."""
    space, count = result.grid.space, len(overheads)
    if space.kind == "continuous":  # what cannot be built has no job
        return False
    for s, k in np.ndindex(space.active.shape):
        keys = [(space.names[s], float(space.experts[s, k]), int(R)) for R in space.recurrences]
        model = space.model(s, k)
        if model is None or all(key in overheads for key in keys):
            continue
        job = cluster.job(model, 1, LONG)
        if job.least_bytes() > job.usable:
            overheads.update(dict.fromkeys(keys, np.inf))
    return len(overheads) > count


def _key(design: Design) -> tuple[str, float, int]:
    return design.rung, float(design.experts), design.recurrence
