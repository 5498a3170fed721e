"""What other limits would give: each one loosened, the design just beyond them, and other ways to keep the KV cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from loopscale.core.errors import InputError
from loopscale.planning.budget import FIELDS
from loopscale.planning.records import CachePolicy, NextBest, Sensitivity
from loopscale.planning.searching import Search, best_design

KEPT_WINDOW = 512
"""Positions of the windowed KV policy."""


def sensitivities(found: Search) -> tuple[Sensitivity, ...]:
    """Return what each limit would buy if it were loosened, the largest gain first: one search for each."""
    rows = []
    for name, field in FIELDS.items():
        cap = getattr(found.budget, name)
        if cap is None or field.relaxed is None:
            continue
        looser = replace(found.budget, **{name: field.relaxed * cap})
        grid, pick = best_design(found.law, found.grid.space, looser, found.grid.eps, found.grid.rule)
        loss, level = float(grid.loss_ZFSKP[0, 0].ravel()[pick]), str(grid.trust_FSKP[0].ravel()[pick])
        saved = found.choice.loss - loss
        rows.append(Sensitivity(name, field.relaxed, used(found, name), cap, grid.label(pick), loss, saved, level))
    return tuple(sorted(rows, key=lambda row: -row.saved))


def used(found: Search, name: str) -> float:
    """Return how much of a limit the choice takes, in the unit of the limit."""
    if name == "flops":
        return found.spent_flops
    if name == "real_flops":
        served = found.choice.inference_flops * (found.budget.serve_tokens or 0.0)
        return float(found.grid.real_flops_FSKP[0].ravel()[found.chosen]) + served
    if name == "max_tokens":
        return found.choice.tokens
    limit = next(limit for limit in found.grid.limits if limit.field == name)
    return limit.amount(float(np.broadcast_to(limit.need, found.grid.tokens_FSKP.shape)[0].ravel()[found.chosen]))


def next_best(found: Search) -> NextBest | None:
    """Return the design of lower loss that needs the least more than the limits allow; None where there is none."""
    grid = found.grid
    loss, shape = grid.loss_ZFSKP[0, 0].ravel(), grid.tokens_FSKP.shape
    ratio = np.ones(loss.shape)
    for limit in grid.limits:
        ratio = np.maximum(ratio, np.broadcast_to(limit.need / limit.cap, shape)[0].ravel())
    better = grid.admissible_ZFSKP[0, 0].ravel() & (loss < found.choice.loss) & (ratio > 1)
    if not better.any():
        return None
    flat = int(np.argmin(np.where(better, ratio, np.inf)))
    design = found.design(flat)
    return NextBest(design.label, design.loss, design.verdict, float(ratio[flat]), design.trust)


def cache_policies(found: Search) -> tuple[CachePolicy, ...]:
    """Return the best design for each way to keep keys and values, where a context is given and something loops.

    The law does not know what a smaller cache costs in loss.
    """
    if found.budget.context is None or not found.grid.space.loop.any():
        return ()
    policies: dict[str, dict[str, Any]] = {
        "all passes": {"kept_passes": None, "kept_window": None},
        "last pass": {"kept_passes": 1, "kept_window": None},
        f"first pass plus a window of {KEPT_WINDOW}": {"kept_passes": None, "kept_window": KEPT_WINDOW},
    }
    rows = []
    for policy, kept in policies.items():
        budget = replace(found.budget, **kept)
        try:
            grid, pick = best_design(found.law, found.grid.space, budget, found.grid.eps, found.grid.rule)
        except InputError:  # nothing fits
            continue
        loss, cache = grid.loss_ZFSKP[0, 0].ravel()[pick], grid.kv_bytes_SKP.ravel()[pick]
        rows.append(CachePolicy(policy, grid.label(pick), float(loss), float(cache)))
    return tuple(rows)
