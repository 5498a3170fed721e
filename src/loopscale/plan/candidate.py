"""One design out of an evaluated space, with its costs and what speaks against it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loopscale.plan.budget import Rule
from loopscale.plan.choose import SLACK
from loopscale.plan.grid import Grid
from loopscale.quantities import format_bytes, format_count, plain


@dataclass(frozen=True)
class Candidate:
    """A design and everything the planner knows of it. Counts leave embeddings out; bytes include them."""

    rung: str
    width: float
    layers: float
    experts: float
    recurrence: int
    active: float
    loop: float
    total: float
    embedding: float
    m: float
    unrolled: float
    effective: float
    tokens: float
    loss: float
    loss_low: float | None
    """Where the law has resamples: the 5th percentile of their predictions."""
    loss_high: float | None
    train_flops: float
    inference_flops: float
    weight_bytes: float
    kv_bytes: float
    extrapolated: tuple[str, ...]
    """Axes on which the law is used outside the range it was fitted on."""
    ruled_out_by: str | None
    """What excludes it: serving, memory, inference, compute, pass or experts; None where nothing does."""
    verdict: str
    """The same in words; ``chosen`` for the choice."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "extrapolated": list(self.extrapolated)}

    @property
    def label(self) -> str:
        """Name the design in a word."""
        return f"{self.rung} E={self.experts:g} R={self.recurrence}"


def candidate(grid: Grid, flat: int, chosen: int) -> Candidate:
    """Return the candidate at a flat index over (S, K, P), at the first compute budget, as the choice leaves it."""
    at = tuple(int(each) for each in np.unravel_index(flat, grid.space.shape))
    (s, k, p), space = at, grid.space
    low, high = _spread(grid, at)
    ruled_out_by, verdict = _judged(grid, at, flat, chosen)
    return Candidate(
        rung=space.names[s],
        width=plain(space.width[s, k]),
        layers=plain(space.layers[s, k]),
        experts=plain(space.experts[s, k]),
        recurrence=int(space.recurrences[p]),
        active=plain(space.active[s, k]),
        loop=plain(space.loop[s, k]),
        total=plain(space.total[s, k]),
        embedding=plain(space.embedding[s, k]),
        m=float(space.active[s, k] / space.total[s, k]),
        unrolled=plain(space.unrolled()[at]),
        effective=float(space.active[s, k] + grid.gain_SKP[at] * space.loop[s, k]),
        tokens=float(grid.tokens_FSKP[(0, *at)]),
        loss=float(grid.loss_ZFSKP[(0, 0, *at)]),
        loss_low=low,
        loss_high=high,
        train_flops=float(grid.train_flops_FSKP[(0, *at)]),
        inference_flops=plain(grid.inference_SKP[at]),
        weight_bytes=float(grid.weight_bytes_SK[s, k]),
        kv_bytes=float(grid.kv_bytes_SKP[at]),
        extrapolated=tuple(axis for axis, flags in grid.extrapolated_FSKP.items() if flags[(0, *at)]),
        ruled_out_by=ruled_out_by,
        verdict=verdict,
    )


def _judged(grid: Grid, at: tuple[int, ...], flat: int, chosen: int) -> tuple[str | None, str]:
    if flat == chosen:
        return None, "chosen"
    if (found := _exclusion(grid, at)) is not None:
        return found
    lost = grid.loss_ZFSKP[(0, 0, *at)] - grid.loss_ZFSKP[0, 0].ravel()[chosen]
    return None, f"loss {lost:.4f} higher"


def _exclusion(grid: Grid, at: tuple[int, ...]) -> tuple[str, str] | None:
    """Return what rules a design out and how to say it, the hardest limit first; None when nothing does."""
    budget, R = grid.budget, int(grid.space.recurrences[at[2]])
    if not grid.tokens_FSKP[(0, *at)] > 0:
        return "serving", "serving alone costs more than the compute budget"
    if budget.memory is not None and grid.memory_SKP[at] > budget.memory * SLACK:
        return "memory", f"needs {format_bytes(grid.memory_SKP[at])} of memory"
    if budget.inference_flops is not None and grid.inference_SKP[at] > budget.inference_flops * SLACK:
        return "inference", f"costs {format_count(grid.inference_SKP[at])} FLOPs a generated token"
    if not grid.allowed_FSKP[(0, *at)]:
        return "compute", f"needs {format_count(grid.train_flops_FSKP[(0, *at)])} FLOPs of training"
    if grid.rule is Rule.LOSS:
        return None
    if not (gain := grid.pass_gain_ZFSKP[(0, 0, *at)]) >= grid.eps:
        return "pass", f"pass {R} {_too_little(gain, grid.eps)}"
    if not (gain := grid.expert_gain_ZFSKP[(0, 0, *at)]) >= grid.eps:
        before, after = grid.space.experts[at[0], at[1] - 1], grid.space.experts[at[0], at[1]]
        return "experts", f"E {before:g} → {after:g} {_too_little(gain, grid.eps)}"
    return None


def _too_little(gain: float, eps: float) -> str:
    return f"gains {gain:.4f}, less than eps {eps:g}" if gain >= 0 else f"raises the loss by {-gain:.4f}"


def _spread(grid: Grid, at: tuple[int, ...]) -> tuple[float | None, float | None]:
    if len(grid.loss_ZFSKP) == 1:
        return None, None
    low, high = np.percentile(grid.loss_ZFSKP[1:, 0][:, at[0], at[1], at[2]], [5, 95])
    return float(low), float(high)
