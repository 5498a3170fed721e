"""What other limits would give: each one loosened, the design just beyond them, and other ways to keep the KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loopscale.core.errors import InputError
from loopscale.core.quantities import bits_of
from loopscale.planning.budget import FIELDS, Budget
from loopscale.planning.design import Design
from loopscale.planning.grid import Grid
from loopscale.planning.searching import Search, best_design

NEARLY = 1.05
"""How many times a limit a design may need for a plan to say what would make it fit."""
REAL_FORMAT = "q4_k_m"
"""A format of 4-bit weights as they are stored: with their scales they take more than 4 bits."""
KEPT_WINDOW = 512
"""Positions of the windowed KV policy."""


@dataclass(frozen=True)
class Sensitivity:
    """What a looser limit would buy."""

    limit: str
    """The field of the budget."""
    factor: float
    """By how much it is loosened."""
    used: float
    """How much of it the choice takes."""
    cap: float
    design: str
    """The best design under the looser limit."""
    loss: float
    saved: float
    trust: str

    @property
    def share(self) -> float:
        """The share of the limit that the choice takes; for a lower limit, how close the choice is to it."""
        return self.used / self.cap if self.factor > 1 else self.cap / self.used

    @property
    def binds(self) -> bool:
        """Whether the limit holds the loss up."""
        return self.saved > 1e-6


@dataclass(frozen=True)
class NextBest:
    """The better design that needs the least more than the limits allow."""

    design: str
    loss: float
    needs: str
    """What it needs, as a sentence."""
    factor: float
    """How many times the limit that it misses by most."""
    trust: str
    fits_with: str | None = None
    """What would make it fit, where it misses the memory by little: a shorter context, or fewer bits."""


@dataclass(frozen=True)
class BitsChoice:
    """The best design if weights take the bits of a format that people use."""

    format: str
    bits: float
    design: str | None
    """None where nothing fits."""
    loss: float | None


@dataclass(frozen=True)
class CachePolicy:
    """The best design for one way to keep keys and values."""

    policy: str
    design: str
    loss: float
    kv_bytes: float


def sensitivities(search: Search) -> tuple[Sensitivity, ...]:
    """Return what each limit would buy if it were loosened, the largest gain first: one search for each."""
    rows = []
    for name, field in FIELDS.items():
        cap = getattr(search.budget, name)
        if cap is None or field.relaxed is None:
            continue
        looser = replace(search.budget, **{name: field.relaxed * cap})
        grid, pick, loss = _best_under(looser, search)
        saved, level = search.choice.loss - loss, str(grid.trust_FSKP[0].ravel()[pick])
        rows.append(Sensitivity(name, field.relaxed, used(search, name), cap, grid.label(pick), loss, saved, level))
    return tuple(sorted(rows, key=lambda row: -row.saved))


def _best_under(budget: Budget, search: Search) -> tuple[Grid, int, float]:
    """Return the same candidates under another budget, the best of them there and its loss."""
    grid, pick = best_design(search.law, search.grid.space, budget, search.grid.eps, search.grid.rule)
    return grid, pick, float(grid.loss_C[pick])


def used(search: Search, name: str) -> float:
    """Return how much of a limit the choice takes, in the unit of the limit."""
    if name == "flops":
        return search.spent_flops
    if name == "real_flops":
        return float(search.grid.real_flops_FSKP[0].ravel()[search.chosen]) + search.serving_flops
    if name == "max_tokens":
        return search.choice.tokens
    limit = next(limit for limit in search.grid.limits if limit.field == name)
    return limit.amount(float(np.broadcast_to(limit.need, search.grid.tokens_FSKP.shape)[0].ravel()[search.chosen]))


def next_best(search: Search) -> NextBest | None:
    """Return the design of lower loss that needs the least more than the limits allow; None where there is none."""
    grid = search.grid
    loss, shape = grid.loss_C, grid.tokens_FSKP.shape
    ratio = np.ones(loss.shape)
    for limit in grid.limits:
        ratio = np.maximum(ratio, np.broadcast_to(limit.need / limit.cap, shape)[0].ravel())
    better = grid.admissible_ZFSKP[0, 0].ravel() & (loss < search.choice.loss) & (ratio > 1)
    if not better.any():
        return None
    flat = int(np.argmin(np.where(better, ratio, np.inf)))
    design = search.design(flat)
    factor = float(ratio[flat])
    remedy = _fits_with(design, search.budget) if factor < NEARLY else None
    return NextBest(design.label, design.loss, design.verdict, factor, design.trust, remedy)


def _fits_with(design: Design, budget: Budget) -> str | None:
    """Say what would make a design fit the memory: a context that is at most a fifth shorter, or fewer bits."""
    if design.ruled_out_by != "memory" or budget.memory is None:
        return None
    excess = design.memory - budget.memory
    if budget.context is not None and budget.kept_window is None:
        shorter = int(budget.context * (1 - excess / design.kv_bytes))
        if shorter >= 0.8 * budget.context:
            return f"a context of {shorter:,}"
    bits = budget.bits * (1 - excess / design.weight_bytes)
    return f"{math.floor(bits * 1000) / 1000:g} bits a weight"


def at_real_bits(search: Search) -> BitsChoice | None:
    """Return what 4-bit weights allow in a format that people use, where that is another design; else None."""
    budget = search.budget
    if budget.memory is None or budget.bits != 4:
        return None
    bits = bits_of(REAL_FORMAT)
    try:
        grid, pick, loss = _best_under(replace(budget, bits=bits), search)
    except InputError:
        return BitsChoice(REAL_FORMAT, bits, None, None)
    if grid.label(pick) == search.choice.label:
        return None
    return BitsChoice(REAL_FORMAT, bits, grid.label(pick), loss)


def cache_policies(search: Search) -> tuple[CachePolicy, ...]:
    """Return the best design for each way to keep keys and values, where a context is given and something loops.

    The law does not know what a smaller cache costs in loss.
    """
    if search.budget.context is None or not search.grid.space.loop.any():
        return ()
    policies: dict[str, dict[str, Any]] = {
        "all passes": {"kept_passes": None, "kept_window": None},
        "last pass": {"kept_passes": 1, "kept_window": None},
        f"first pass plus a window of {KEPT_WINDOW}": {"kept_passes": None, "kept_window": KEPT_WINDOW},
    }
    rows = []
    for policy, settings in policies.items():
        try:
            grid, pick, loss = _best_under(replace(search.budget, **settings), search)
        except InputError:  # nothing fits
            continue
        rows.append(CachePolicy(policy, grid.label(pick), loss, float(grid.kv_bytes_SKP.ravel()[pick])))
    return tuple(rows)
