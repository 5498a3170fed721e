"""Profiles and maps: how loss and the best choice change along an axis, as tidy tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from loopscale.architecture import Space, continuous_space, ladder_space
from loopscale.core.arrays import FloatArray, IntArray
from loopscale.core.tables import Table
from loopscale.planning.budget import Budget
from loopscale.planning.grid import Grid, Rule, agreement, best_within, evaluate, near_agreement
from loopscale.planning.intervals import interval_kind
from loopscale.scaling import ScalingLaw

ACTIVE_EXPERTS = 2
"""k: experts that a token uses in the models of the ladder, unless another number is asked for."""


def isoflop_over_size(
    law: ScalingLaw,
    flops: ArrayLike,
    experts: Sequence[float] = (1, 8),
    recurrences: Sequence[int] = (1, 2, 4),
    widths: ArrayLike | None = None,
) -> Table:
    """Return loss against N_act at fixed compute on the continuous ladder, with each curve's minimum marked."""
    grid = _compute_grid(law, continuous_space(experts, recurrences, widths), flops, Rule.LOSS, None)
    return _curves(grid, best_axis=-3)


def isoflop_over_recurrence(
    law: ScalingLaw,
    flops: ArrayLike,
    space: Space | None = None,
    eps: float | None = None,
) -> Table:
    """Return loss against R at fixed compute, with R* under the paper's rule marked on each curve."""
    space = ladder_space(experts=(1, 8)) if space is None else space
    return _curves(_compute_grid(law, space, flops, Rule.PAPER, eps), best_axis=-1)


def isoflop_over_experts(
    law: ScalingLaw,
    flops: ArrayLike,
    space: Space | None = None,
    eps: float | None = None,
) -> Table:
    """Return loss against E at fixed compute, with E* under the paper's rule marked on each curve."""
    space = ladder_space(recurrences=(1, 4)) if space is None else space
    return _curves(_compute_grid(law, space, flops, Rule.PAPER, eps), best_axis=-2)


def recurrence_map(
    law: ScalingLaw,
    flops: ArrayLike,
    space: Space | None = None,
    eps: float | None = None,
) -> Table:
    """Return R* for every (compute, size, experts), with the share of resampled laws that agree."""
    space = ladder_space(experts=(1, 8)) if space is None else space
    grid = _compute_grid(law, space, flops, Rule.PAPER, eps)
    gains = grid.pass_gain_ZFSKP >= grid.eps
    best_ZFSK = np.argmin(np.where(gains, grid.loss_ZFSKP, np.inf), axis=-1)
    chosen = space.recurrences[best_ZFSK]
    shape = best_ZFSK.shape[1:]
    return _known(
        shape,
        flops=grid.flops[:, None, None],
        rung=np.array(space.names)[:, None],
        active=space.active,
        experts=space.experts,
        best_recurrence=chosen[0],
        **_spans("best_recurrence", chosen[1:]),
        loss=np.take_along_axis(grid.loss_ZFSKP[0], best_ZFSK[0][..., None], axis=-1)[..., 0],
        agreement=agreement(best_ZFSK),
        extrapolated=np.take_along_axis(outside_text(grid), best_ZFSK[0][..., None], axis=-1)[..., 0],
        trust=np.take_along_axis(grid.trust_FSKP, best_ZFSK[0][..., None], axis=-1)[..., 0],
    )


def experts_map(
    law: ScalingLaw,
    memory: ArrayLike,
    budget: Budget,
    space: Space | None = None,
    eps: float | None = None,
) -> Table:
    """Return E* for every (memory, recurrence): the best size and experts that fit, each R given.

    Give a space of one size to hold the size fixed too.
    """
    space = ladder_space() if space is None else space
    grid = evaluate(law, space, replace(budget, memory=None), eps=eps)
    memory_B = np.atleast_1d(np.asarray(memory, float))
    usable = (grid.expert_gain_ZFSKP >= grid.eps) & np.isfinite(grid.loss_ZFSKP) & grid.within()
    loss_ZSKP = np.where(usable, grid.loss_ZFSKP, np.inf)[:, 0]
    per_pass = [
        best_within(loss_ZSKP[..., p].reshape(len(loss_ZSKP), -1), grid.memory_SKP[..., p].ravel(), memory_B)
        for p in range(space.shape[2])
    ]
    best_ZBP = np.stack(per_pass, axis=-1)
    fits, (s, k) = best_ZBP[0] >= 0, np.unravel_index(np.maximum(best_ZBP[0], 0), space.active.shape)
    loss = grid.loss_ZFSKP[0, 0][s, k, np.arange(space.shape[2])]
    return _known(
        fits.shape,
        memory=memory_B[:, None],
        recurrence=space.recurrences,
        best_experts=np.where(fits, space.experts[s, k], np.nan),
        **_spans(
            "best_experts", np.where(best_ZBP[1:] >= 0, space.experts.ravel()[np.maximum(best_ZBP[1:], 0)], np.nan)
        ),
        rung=np.where(fits, np.array(space.names)[s], ""),
        loss=np.where(fits, loss, np.nan),
        agreement=agreement(best_ZBP),
        extrapolated=np.where(fits, outside_text(grid)[0][s, k, np.arange(space.shape[2])], ""),
        trust=np.where(fits, grid.trust_FSKP[0][s, k, np.arange(space.shape[2])], ""),
    )


def joint_optimum(
    law: ScalingLaw,
    memory: ArrayLike,
    budget: Budget,
    space: Space | None = None,
    eps: float | None = None,
    rule: Rule = Rule.PAPER,
) -> Table:
    """Return the best size, experts and recurrence for every memory budget, with the resampled laws' agreement."""
    space = ladder_space() if space is None else space
    grid = evaluate(law, space, replace(budget, memory=None), eps=eps, rule=rule)
    memory_B = np.atleast_1d(np.asarray(memory, float))
    picks_ZFB = grid.optimum(memory_B)
    fits, (s, k, p) = picks_ZFB[0, 0] >= 0, np.unravel_index(np.maximum(picks_ZFB[0, 0], 0), space.shape)
    columns = {
        "memory": memory_B,
        "rung": np.where(fits, np.array(space.names)[s], ""),
        "active": np.where(fits, space.active[s, k], np.nan),
        "experts": np.where(fits, space.experts[s, k], np.nan),
        "recurrence": np.where(fits, space.recurrences[p], 0),
        "tokens": np.where(fits, grid.tokens_FSKP[0][s, k, p], np.nan),
        "loss": np.where(fits, grid.loss_ZFSKP[0, 0][s, k, p], np.nan),
        "agreement": near_agreement(grid, picks_ZFB)[0],
        "extrapolated": np.where(fits, outside_text(grid)[0][s, k, p], ""),
        "trust": np.where(fits, grid.trust_FSKP[0][s, k, p], ""),
    }
    if len(grid.loss_ZFSKP) > 1:
        low, high = np.percentile(grid.loss_ZFSKP[1:, 0][:, s, k, p], [5, 95], axis=0)
        columns |= {"loss_low": np.where(fits, low, np.nan), "loss_high": np.where(fits, high, np.nan)}
    return _known(fits.shape, **columns, **_choice_spans(space, picks_ZFB[1:, 0]))


def _choice_spans(space: Space, picks_ZB: IntArray) -> dict[str, FloatArray]:
    """Return the spans of the size, experts and recurrence that resampled laws choose."""
    s, k, p = np.unravel_index(np.maximum(picks_ZB, 0), space.shape)
    chosen = {"active": space.active[s, k], "experts": space.experts[s, k], "recurrence": space.recurrences[p]}
    spans: dict[str, FloatArray] = {}
    for name, values in chosen.items():
        spans |= _spans(name, np.where(picks_ZB < 0, np.nan, values))
    return spans


def _spans(name: str, chosen_Z: FloatArray | IntArray) -> dict[str, FloatArray]:
    """Return the 5th and 95th percentile of what resampled laws choose, NaN where none finds anything."""
    if not len(chosen_Z):
        return {}
    sorted_Z = np.sort(np.asarray(chosen_Z, float), axis=0)  # NaN last
    last = np.maximum(np.sum(~np.isnan(sorted_Z), axis=0) - 1, 0)
    # A percentile between two designs is no design: take the nearest that some law chose.
    nearest = {end: np.around(last * share).astype(np.intp) for end, share in (("low", 0.05), ("high", 0.95))}
    return {f"{name}_{end}": np.take_along_axis(sorted_Z, at[None], axis=0)[0] for end, at in nearest.items()}


def built_experts(experts: float) -> str:
    """Write experts as models of the ladder are built, k of k E: "2/16" for E = 8."""
    return "dense" if experts == 1 else f"{ACTIVE_EXPERTS:g}/{ACTIVE_EXPERTS * experts:g}"


def choice_span(row: Mapping[str, Any], name: str, write: Callable[[float], str]) -> str:
    """Write the span of resampled laws' choices in a row of ``joint_optimum``; nothing where it has none."""
    if f"{name}_low" not in row:
        return ""
    return f"[{write(row[f'{name}_low'])}, {write(row[f'{name}_high'])}]"


def _compute_grid(law: ScalingLaw, space: Space, flops: ArrayLike, rule: Rule, eps: float | None) -> Grid:
    budgets = np.atleast_1d(np.asarray(flops, float))
    return evaluate(law, space, Budget(flops=float(budgets[0])), flops=budgets, eps=eps, rule=rule)


def _curves(grid: Grid, best_axis: int) -> Table:
    """Return every cell of the grid; ``best`` marks the lowest admissible loss along ``best_axis``.

    Along experts only the expert step must pay, along recurrences only the pass: the other axis is given.
    """
    pays = {-1: grid.pass_gain_ZFSKP, -2: grid.expert_gain_ZFSKP}.get(best_axis)
    masked = grid.loss_ZFSKP if pays is None else np.where(pays >= grid.eps, grid.loss_ZFSKP, np.inf)
    best = np.argmin(masked, axis=best_axis)[0]
    marks = np.zeros(grid.loss_ZFSKP.shape[1:], dtype=bool)
    np.put_along_axis(marks, np.expand_dims(best, best_axis), True, axis=best_axis)
    marks &= np.isfinite(grid.loss_ZFSKP[0])
    space, outside = grid.space, outside_text(grid)
    columns = {
        "flops": grid.flops[:, None, None, None],
        "rung": np.array(space.names)[:, None, None],
        "active": space.active[..., None],
        "experts": space.experts[..., None],
        "recurrence": space.recurrences,
        "experts_active": grid.built_SK[0][..., None],
        "experts_total": grid.built_SK[1][..., None],
        "tokens": grid.tokens_FSKP,
        "loss": grid.loss_ZFSKP[0],
        "best": marks,
        "extrapolated": outside,
        "trust": grid.trust_FSKP,
    }
    if len(grid.loss_ZFSKP) > 1:
        columns["loss_low"], columns["loss_high"] = grid.band_FSKP
        columns["interval"] = interval_kind(grid.law)
    return _known(marks.shape, **columns)


def _known(shape: tuple[int, ...], **columns: Any) -> Table:
    """Return a table without intervals and agreement where designs lie more than 10x beyond the law's data."""
    beyond = np.broadcast_to(columns["trust"], shape) == "beyond"
    uncertain = {name: np.where(beyond, np.nan, np.broadcast_to(columns[name], shape))
                 for name in ("agreement", "loss_low", "loss_high") if name in columns}  # fmt: skip
    return Table.from_arrays(shape, **columns | uncertain)


def outside_text(grid: Grid) -> np.ndarray[tuple[int, ...], np.dtype[np.str_]]:
    """Return, for every cell, the axes on which the law extrapolates, joined by spaces."""
    text = np.full(grid.tokens_FSKP.shape, "", dtype="U40")
    for axis, marked in grid.extrapolated_FSKP.items():
        joined = np.char.add(np.where(text == "", "", np.char.add(text, " ")), axis)
        text = np.where(marked, joined, text)
    return text
