"""Every candidate's loss and costs at once.

Shapes: Z laws (the law itself first, then its resamples), F compute budgets, S sizes, K expert counts, P recurrences;
C is (S, K, P) in one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from loopscale.architecture import Space, check_candidates
from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.core.errors import InputError, choice
from loopscale.core.quantities import plain
from loopscale.planning.budget import Budget
from loopscale.planning.limits import SLACK, Limit, limits_of
from loopscale.planning.recipes import CAPACITY, CONTEXT, padding
from loopscale.scaling import Points, ScalingLaw, costs


class Rule(Enum):
    """How the choice is made among the designs that fit."""

    PAPER = "paper"
    """Lowest loss among those whose last pass and last expert step each gain at least eps."""
    LOSS = "loss"
    """Lowest loss, however little the last step gains."""


def resolve_eps(law: ScalingLaw, eps: float | None, rule: Rule) -> float:
    """Return the smallest gain that justifies a step: ``eps`` if given, else the law's RMSE."""
    if rule is Rule.LOSS:
        return 0.0
    if eps is not None:
        if not (np.isfinite(eps) and eps >= 0):
            raise InputError(f"eps is {eps}; it should be zero or more")
        return eps
    if law.eps is None:
        raise InputError(f"law {law.name!r} states no RMSE to take as eps; give eps, or choose the rule 'loss'")
    return law.eps


@dataclass(frozen=True, eq=False)
class Grid:
    """The evaluated design space."""

    law: ScalingLaw
    space: Space
    budget: Budget
    eps: float
    rule: Rule
    flops: FloatArray
    """(F) compute budgets"""
    tokens_FSKP: FloatArray
    loss_ZFSKP: FloatArray
    """Infinite where compute does not pay for a single token to train on."""
    pass_gain_ZFSKP: FloatArray
    """L(R - 1) - L(R), both at their own matched tokens; infinite where R is the smallest asked for."""
    expert_gain_ZFSKP: FloatArray
    """L(E before) - L(E) at the same size and R; infinite where E is the smallest asked for."""

    @cached_property
    def admissible_ZFSKP(self) -> BoolArray:
        """Where the last pass and the last expert step each gain at least eps (all, under the rule ``loss``)."""
        finite = np.isfinite(self.loss_ZFSKP)
        if self.rule is Rule.LOSS:
            return finite
        return finite & (self.pass_gain_ZFSKP >= self.eps) & (self.expert_gain_ZFSKP >= self.eps)

    @cached_property
    def weight_bytes_SK(self) -> FloatArray:
        """Weights with embeddings, at the budget's bits."""
        return (self.space.total + self.space.embedding) * self.budget.bits / 8

    @cached_property
    def kv_bytes_SKP(self) -> FloatArray:
        """KV cache, zero when no context is asked for."""
        if self.budget.context is None:
            return np.zeros(self.space.shape)
        return self.space.kv_bytes(
            context=self.budget.context,
            batch=self.budget.batch,
            bits=self.budget.kv_bits,
            kept_passes=self.budget.kept_passes,
            kept_window=self.budget.kept_window,
        )

    @cached_property
    def memory_SKP(self) -> FloatArray:
        """What has to fit: weights and KV cache."""
        return self.weight_bytes_SK[..., None] + self.kv_bytes_SKP

    @cached_property
    def inference_SKP(self) -> FloatArray:
        """2 N_unroll: the paper's cost of a generated token."""
        return np.asarray(costs.inference_flops(self.space.unrolled()))

    @cached_property
    def serving_SKP(self) -> FloatArray:
        """Compute that the budget's lifetime inference takes."""
        return np.asarray(self.inference_SKP * (self.budget.serve_tokens or 0.0))

    @cached_property
    def bytes_read_SKP(self) -> FloatArray:
        """Bytes that one generated token reads: the weights of every pass, the output head, and the KV cache.

        A loop block whose stored experts fit the budget's on-chip cache is read once for all passes. Every pass reads
        the KV cache that it attends to, its own or a shared one.
        """
        space, budget, passes = self.space, self.budget, self.space.recurrences.astype(float)
        stored_loop = space.total * space.loop / space.active * budget.bits / 8
        times_read = np.where((stored_loop <= (budget.cache or 0.0))[..., None], 1.0, passes)
        weights = space.active[..., None] + (times_read - 1) * space.loop[..., None] + space.output_head()[..., None]
        if budget.context is None:
            return np.asarray(weights * budget.bits / 8)
        keys = self.kv_bytes_SKP / budget.batch
        if budget.kept_passes is not None:
            keys = space.kv_bytes(context=budget.context, batch=1, bits=budget.kv_bits, kept_passes=None)
        return np.asarray(weights * budget.bits / 8 + keys)

    @cached_property
    def train_flops_FSKP(self) -> FloatArray:
        """6 N_unroll D; below the budget where tokens are capped or serving is paid for."""
        return np.asarray(costs.train_flops(self.space.unrolled(), self.tokens_FSKP))

    @cached_property
    def real_flops_FSKP(self) -> FloatArray:
        """Training compute with output head, attention and expert padding."""
        return np.asarray(recipe_flops_per_token(self.space, self.space.recurrences) * self.tokens_FSKP)

    @cached_property
    def loss_C(self) -> FloatArray:
        """The law's own loss at the first compute budget, by flat index over (S, K, P)."""
        return np.asarray(self.loss_ZFSKP[0, 0].ravel())

    @cached_property
    def points(self) -> Points:
        """Every candidate as the law sees it, (F, S, K, P)."""
        tokens = np.maximum(self.tokens_FSKP, 1.0)
        return law_points(self.law, self.space, self.space.recurrences, tokens, self.budget.unique_tokens)

    @cached_property
    def gain_SKP(self) -> FloatArray:
        """What looping adds, in units of the looped block."""
        return np.broadcast_to(self.law.gain(self.points), self.space.shape)

    @cached_property
    def extrapolated_FSKP(self) -> dict[str, BoolArray]:
        """Axis by axis, where the law is used outside the range it was fitted on."""
        shape = self.tokens_FSKP.shape
        return {axis: np.broadcast_to(flags, shape) for axis, flags in self.law.extrapolated(self.points).items()}

    @cached_property
    def trust_FSKP(self) -> NDArray[np.str_]:
        """The level of trust in each loss."""
        return np.broadcast_to(self.law.trust_levels(self.points), self.tokens_FSKP.shape)

    @cached_property
    def band_FSKP(self) -> tuple[FloatArray, FloatArray]:
        """The 90% band of each loss, of the kind that ``interval_kind`` says; infinite where the loss is."""
        if self.law.spread is None:
            with np.errstate(invalid="ignore"):  # a cell that no law can fill has an infinite loss, and no interval
                low, high = np.percentile(self.loss_ZFSKP[1:], [5, 95], axis=0)
            return low, high
        low, high = (np.broadcast_to(end, self.tokens_FSKP.shape) for end in self.law.predictive_interval(self.points))
        trained = np.isfinite(self.loss_ZFSKP[0])
        return np.where(trained, low, np.inf), np.where(trained, high, np.inf)

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        """Every limit that the budget sets, the hardest first: all that rules a candidate out, rule apart."""
        return limits_of(self)

    def within(self, lifted: str | None = None) -> BoolArray:
        """Return where every limit is met, (F, S, K, P); the limit on the field ``lifted`` is not applied."""
        met = self.tokens_FSKP >= 1
        for limit in self.limits:
            if limit.field != lifted:
                met = met & limit.met
        return met

    def nothing_fits(self) -> InputError:
        """Return the refusal that names the limit that leaves nothing, and what the closest candidate needs."""
        for limit in self.limits:
            if not np.any(limit.met):
                need = np.broadcast_to(limit.need, self.tokens_FSKP.shape)[0]
                flat = int(np.argmin(need))
                return limit.refusal(self.label(flat), float(need.ravel()[flat]), self.budget)
        return InputError("no candidate meets all limits together", remedy="loosen one of them")

    def label(self, flat: int) -> str:
        """Name the design at a flat index over (S, K, P)."""
        s, k, p = (int(index) for index in np.unravel_index(flat, self.space.shape))
        return design_label(self.space.names[s], self.built_experts(s, k), int(self.space.recurrences[p]))

    @cached_property
    def built_SK(self) -> tuple[FloatArray, FloatArray]:
        """How many experts a token uses and how many there are, as the models are built; 1 of 1 for dense ones."""
        space, E = self.space, self.space.experts
        if space.kind == "models":
            used = [float(model.active_experts) for model in space.models]
            there = [float(model.routed_experts) for model in space.models]
            return np.reshape(used, E.shape), np.reshape(there, E.shape)
        return np.where(E == 1, 1.0, space.active_experts), np.where(E == 1, 1.0, E * space.active_experts)

    def built_experts(self, s: int, k: int) -> tuple[float, float]:
        """Return the experts of one model as it is built."""
        used, there = self.built_SK
        return plain(used[s, k]), plain(there[s, k])

    def optimum(self, memory_B: FloatArray | None = None) -> IntArray:
        """Return the flat index over (S, K, P) of the best design, (Z, F, B); -1 where none is left.

        ``memory_B`` are memory budgets in bytes; without them the budget's own serves, or none.
        """
        if memory_B is None:
            memory_B = np.array([np.inf if self.budget.memory is None else self.budget.memory])
        usable_ZFSKP = self.admissible_ZFSKP & self.within(lifted="memory")
        usable = usable_ZFSKP.reshape(*usable_ZFSKP.shape[:2], -1)
        possible = np.flatnonzero(usable.any(axis=(0, 1)))  # most candidates are admissible under no law
        if not possible.size:
            return np.full((*usable.shape[:2], len(memory_B)), -1)
        loss = np.where(usable[..., possible], self.loss_ZFSKP.reshape(usable.shape)[..., possible], np.inf)
        best = best_within(loss, self.memory_SKP.ravel()[possible], memory_B)
        return np.where(best >= 0, possible[np.maximum(best, 0)], -1)


def design_label(size: str, experts: tuple[float, float], recurrence: int) -> str:
    """Name a design in a few characters: "1.0B 2/16 R=2" uses 2 of 16 experts and is looped twice."""
    mixture = "dense" if experts[1] == 1 else f"{experts[0]:g}/{experts[1]:g}"
    return f"{size} {mixture} R={recurrence}"


def agreement(picks_Z: IntArray) -> FloatArray:
    """Return the share of resampled laws that choose as the law itself does, which comes first; NaN without any."""
    if len(picks_Z) == 1:
        return np.full(picks_Z.shape[1:], np.nan)
    return np.asarray((picks_Z[1:] == picks_Z[0]).mean(axis=0))


def near_agreement(grid: Grid, picks_ZFB: IntArray) -> FloatArray:
    """Return the share of resampled laws under which the law's own choice is within eps of their best, (F, B).

    Designs within eps of one another count as the same choice: neighbouring sizes differ by less than the law knows.
    """
    if len(picks_ZFB) == 1:
        return np.full(picks_ZFB.shape[1:], np.nan)
    loss_ZFC = grid.loss_ZFSKP[1:].reshape(len(picks_ZFB) - 1, len(grid.flops), -1)
    chosen = np.broadcast_to(np.maximum(picks_ZFB[0], 0), picks_ZFB[1:].shape)
    lost = np.take_along_axis(loss_ZFC, chosen, axis=-1)
    best = np.take_along_axis(loss_ZFC, np.maximum(picks_ZFB[1:], 0), axis=-1)
    close = lost - best <= (grid.eps or grid.law.eps or 0.0) + 1e-12
    return np.asarray(((picks_ZFB[1:] >= 0) & (picks_ZFB[0] >= 0) & close).mean(axis=0))


def best_within(loss: FloatArray, cost_C: FloatArray, limits_B: FloatArray) -> IntArray:
    """Return, for every limit, the candidate of lowest loss whose cost is within it; -1 where there is none.

    ``loss`` is (..., C) and infinite where a candidate is ruled out; the answer is (..., B). Candidates are put in
    the order of their cost, so that one running minimum serves all limits.
    """
    order = np.argsort(cost_C, kind="stable")
    ranked = loss[..., order]
    lowest = np.minimum.accumulate(ranked, axis=-1)
    before = np.concatenate([np.full((*lowest.shape[:-1], 1), np.inf), lowest[..., :-1]], axis=-1)
    best = np.maximum.accumulate(np.where(ranked < before, np.arange(len(order)), -1), axis=-1)
    within = np.searchsorted(cost_C[order], limits_B * SLACK, side="right")
    last = best[..., np.maximum(within - 1, 0)]
    return np.where((within > 0) & (last >= 0), order[np.maximum(last, 0)], -1)


def evaluate(
    law: ScalingLaw,
    space: Space,
    budget: Budget,
    *,
    flops: FloatArray | None = None,
    eps: float | None = None,
    rule: Rule | str = Rule.PAPER,
    resamples: bool = True,
) -> Grid:
    """Evaluate every candidate of ``space``; ``flops`` replaces the budget's compute by several budgets at once."""
    rule = choice(Rule, rule, "rule")
    if flops is None:
        flops = np.array([np.inf if budget.flops is None else budget.flops])
    laws = 1 + (len(law.resamples) if resamples and law.resamples is not None else 0)
    check_candidates(int(np.prod(space.shape)) * len(flops), laws)
    # The rule compares R with R - 1, which may not be asked for: evaluate both, then pick.
    passes = np.unique(np.concatenate([space.recurrences, np.maximum(space.recurrences - 1, 1)]))
    tokens = matched_tokens(space, passes, budget, flops)
    points = law_points(law, space, passes, np.maximum(tokens, 1.0), budget.unique_tokens)
    loss = all_losses(law, points) if resamples else law(points)[None]
    if not np.all(tokens >= 1):
        loss = np.where(tokens >= 1, loss, np.inf)
    here = np.searchsorted(passes, space.recurrences)
    before = np.searchsorted(passes, np.maximum(space.recurrences - 1, 1))
    at_R = loss if len(passes) == len(here) else loss[..., here]
    return Grid(
        law=law,
        space=space,
        budget=budget,
        eps=resolve_eps(law, eps, rule),
        rule=rule,
        flops=flops,
        tokens_FSKP=tokens[..., here],
        loss_ZFSKP=at_R,
        pass_gain_ZFSKP=_gain(loss[..., before[1:]], at_R, axis=-1),
        expert_gain_ZFSKP=_gain(at_R[..., :-1, :], at_R, axis=-2),
    )


def law_points(
    law: ScalingLaw, space: Space, recurrences: IntArray, tokens: FloatArray, unique: float | None = None
) -> Points:
    """Return the grid's candidates with their counts as ``law`` counts them."""
    return law.points(
        active=space.active[..., None],
        tokens=tokens,
        recurrence=recurrences.astype(float),
        experts=space.experts[..., None],
        loop=space.loop[..., None],
        total=space.total[..., None],
        embedding=space.embedding[..., None],
        unique_tokens=unique,
    )


def recipe_flops_per_token(space: Space, recurrences: IntArray) -> FloatArray:
    """Return the real training FLOPs of a token on (S, K, P), by the paper's recipe and without recomputation."""
    return space.real_train_flops(recurrences, context=CONTEXT, padding=partial(padding, capacity=CAPACITY))


def matched_tokens(space: Space, passes: IntArray, budget: Budget, flops: FloatArray) -> FloatArray:
    """Return D on (F, S, K, P): what compute allows after serving is paid, at most what there is to train on."""
    unrolled = space.unrolled(passes)
    if budget.tokens is not None:
        return np.full((len(flops), *unrolled.shape), budget.tokens)
    real = budget.real_flops
    if np.any(flops <= 0) or (real is None and not np.isfinite(flops).all()):
        raise InputError("budget: training compute should be finite and above zero")
    tokens = costs.tokens_for(flops[:, None, None, None], unrolled, budget.serve_tokens or 0.0)
    if real is not None:
        serving = costs.inference_flops(unrolled) * (budget.serve_tokens or 0.0)
        per_token = recipe_flops_per_token(space, passes)
        if space.overheads:
            overhead = space.overhead(passes)
            per_token = per_token * np.where(np.isfinite(overhead), overhead, 1.0)
        tokens = np.minimum(tokens, (real - serving) / per_token)
    if budget.max_tokens is not None:
        tokens = np.minimum(tokens, budget.max_tokens)
    return np.asarray(np.maximum(tokens, 0.0))


def all_losses(law: ScalingLaw, points: Points) -> FloatArray:
    """Return the loss of the law, then those of its resamples where it has any: (Z, ...)."""
    return law(points)[None] if law.resamples is None else law.resampled(points, own=True)


def _gain(before: FloatArray, after: FloatArray, axis: int) -> FloatArray:
    """Return the loss that each step along ``axis`` saves; the first value has no step to justify.

    ``before`` has one value fewer along ``axis``: what comes before the second, the third and so on.
    """
    gain = np.empty(after.shape)
    first, steps = [slice(None)] * gain.ndim, [slice(None)] * gain.ndim
    first[axis], steps[axis] = slice(0, 1), slice(1, None)
    gain[tuple(first)] = np.inf
    with np.errstate(invalid="ignore"):  # no tokens on either side: infinite minus infinite
        np.subtract(before, after[tuple(steps)], out=gain[tuple(steps)])
    return gain
