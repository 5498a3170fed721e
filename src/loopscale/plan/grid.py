"""Every candidate's loss and costs at once, for many compute budgets and many resampled laws.

Shapes: Z laws (the law itself first, then its resamples), F compute budgets, S sizes, K expert counts, P recurrences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from loopscale.architecture import RUNG_EXPERTS, RUNG_RECURRENCES, RUNGS, Architecture, at_width, continuous, rung
from loopscale.arrays import BoolArray, FloatArray, IntArray
from loopscale.errors import InputError
from loopscale.laws import Counting, Points, ScalingLaw, costs
from loopscale.plan.budget import Budget, Rule, tolerance

CONTINUOUS_WIDTHS = (256.0, 4096.0, 513)
"""Lowest and highest width of the continuous ladder and how many there are: steps of half a percent."""
LARGEST = 20_000_000
"""Candidates times laws that one evaluation takes: a few arrays of that size stay within some gigabytes."""


@dataclass(frozen=True, eq=False)
class Space:
    """Candidate designs on a grid of S sizes, K expert counts and P recurrences.

    Counts are (S, K): recurrence changes no stored weight.
    """

    names: tuple[str, ...]
    """(S) sizes by name"""
    models: tuple[Architecture, ...]
    """(S x K) models row by row, or one continuous model whose counts are (S, K) arrays."""
    recurrences: IntArray
    """(P), rising"""
    width: FloatArray
    layers: FloatArray
    experts: FloatArray
    active: FloatArray
    loop: FloatArray
    total: FloatArray
    embedding: FloatArray

    @classmethod
    def of(cls, names: Sequence[str], models: Sequence[Architecture], recurrences: Sequence[int]) -> Space:
        """Return the space of ``models``, given row by row: each size with its expert counts."""
        if not names or not models:
            raise InputError("the design space is empty; give at least one size and one expert count")
        fields = ("width", "layers", "experts", "active", "loop", "total", "embedding")
        arrays = {name: _counts(models, name).reshape(len(names), -1) for name in fields}
        passes = np.array(_rising("recurrence", recurrences), dtype=np.int64)
        return cls(tuple(names), tuple(models), passes, **arrays)

    @property
    def shape(self) -> tuple[int, ...]:
        """(S, K, P)"""
        return (*self.active.shape, len(self.recurrences))

    def unrolled(self, recurrences: ArrayLike | None = None) -> FloatArray:
        """Return N_unroll on the grid (S, K, P)."""
        passes = np.asarray(self.recurrences if recurrences is None else recurrences, float)
        return np.asarray(costs.unrolled(self.active[..., None], self.loop[..., None], passes))

    def kv_bytes(self, *, context: int, batch: int, bits: float, kept_passes: int | None) -> FloatArray:
        """Return the KV cache of every candidate, (S, K, P)."""
        sizes = [
            [
                model.kv_bytes(int(R), context=context, batch=batch, bits=bits, kept_passes=kept_passes)
                for R in self.recurrences
            ]
            for model in self.models
        ]
        return np.moveaxis(np.asarray(sizes, float), 1, -1).reshape(self.shape)


def ladder_space(
    rungs: Sequence[str] = tuple(RUNGS),
    experts: Sequence[float] = RUNG_EXPERTS,
    recurrences: Sequence[int] = RUNG_RECURRENCES,
    active_experts: int = 2,
) -> Space:
    """Return the paper's design space, or a part of it: 5 rungs x 6 expert counts x 10 recurrences by default."""
    rows = _rising("experts", experts)
    check_size(len(rungs) * len(rows) * len(recurrences))
    models = [rung(name, each, active_experts) for name in rungs for each in rows]
    return Space.of([model.name for model in models[:: len(rows)]], models, recurrences)


def width_space(
    widths: Sequence[int],
    experts: Sequence[float] = RUNG_EXPERTS,
    recurrences: Sequence[int] = RUNG_RECURRENCES,
    active_experts: int = 2,
    layers: int | None = None,
) -> Space:
    """Return models of other widths by the ladder's rules; their depth follows the width unless given."""
    rows = _rising("experts", experts)
    check_size(len(widths) * len(rows) * len(recurrences))
    models = [at_width(d, layers, experts=each, active_experts=active_experts) for d in widths for each in rows]
    return Space.of([model.name for model in models[:: len(rows)]], models, recurrences)


def continuous_space(
    experts: Sequence[float] = RUNG_EXPERTS,
    recurrences: Sequence[int] = RUNG_RECURRENCES,
    widths: ArrayLike | None = None,
) -> Space:
    """Return the ladder without its gaps: many real-valued widths, which need not be buildable."""
    d = np.asarray(np.geomspace(*CONTINUOUS_WIDTHS) if widths is None else widths, float)
    check_size(len(d) * len(experts) * len(recurrences))
    model = continuous(d[:, None], np.asarray(_rising("experts", experts))[None, :])
    return Space.of([f"d{width:.0f}" for width in d], [model], recurrences)


def architecture_space(models: Sequence[Architecture], recurrences: Sequence[int] = RUNG_RECURRENCES) -> Space:
    """Return given models, each with its own experts; a model without a loop has R = 1 only."""
    for model in models:
        if model.loop == 0 and max(recurrences) > 1:
            raise InputError(f"{model.name}: this model has no loop block; ask for recurrence 1 only")
    return Space.of([model.name for model in models], models, recurrences)


def check_size(candidates: int, laws: int = 1) -> None:
    """Refuse a space that would not fit in memory, before it is built."""
    if candidates * laws > LARGEST:
        many = f"{candidates:,} candidates" + (f" under {laws:,} laws" if laws > 1 else "")
        raise InputError(f"the design space is too large: {many}; at most {LARGEST:,} evaluations fit in one plan")


def _counts(models: Sequence[Architecture], name: str) -> FloatArray:
    """Return one count of all models; a continuous model's scalars spread over its arrays."""
    if len(models) == 1:
        like = np.asarray(models[0].active, float)
        return np.array(np.broadcast_to(np.asarray(getattr(models[0], name), float), like.shape))
    return np.array([float(getattr(model, name)) for model in models])


def _rising(what: str, values: Sequence[float]) -> list[float]:
    rising = sorted(set(values))
    if not rising or not (np.isfinite(rising).all() and rising[0] >= 1):
        raise InputError(f"{what}: {list(values)} should be one or more numbers from 1 up")
    return rising


SLACK = 1 + 1e-12
"""A design that needs exactly the limit fits, whatever the last digit of its arithmetic says."""


def agreement(picks_Z: IntArray) -> FloatArray:
    """Return the share of resampled laws that choose as the law itself does, which comes first; NaN without any."""
    if len(picks_Z) == 1:
        return np.full(picks_Z.shape[1:], np.nan)
    return np.asarray((picks_Z[1:] == picks_Z[0]).mean(axis=0))


def best_within(loss: FloatArray, cost_C: FloatArray, limits_B: FloatArray) -> IntArray:
    """Return, for every limit, the candidate of lowest loss whose cost is within it; -1 where there is none.

    ``loss`` is (..., C) and infinite where a candidate is ruled out; the answer is (..., B). Candidates are put in
    the order of their cost, so that one running minimum serves all limits.
    """
    order = np.argsort(cost_C, kind="stable")
    ranked = loss[..., order]
    lowest = np.minimum.accumulate(ranked, axis=-1)
    before = np.concatenate([np.full((*lowest.shape[:-1], 1), np.inf), lowest[..., :-1]], axis=-1)
    place = np.maximum.accumulate(np.where(ranked < before, np.arange(len(order)), -1), axis=-1)
    within = np.searchsorted(cost_C[order], limits_B * SLACK, side="right")
    last = place[..., np.maximum(within - 1, 0)]
    return np.where((within > 0) & (last >= 0), order[np.maximum(last, 0)], -1)


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
    """Infinite where compute leaves no token to train on."""
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
    def train_flops_FSKP(self) -> FloatArray:
        """6 N_unroll D; below the budget where tokens are capped or serving is paid for."""
        return np.asarray(costs.train_flops(self.space.unrolled(), self.tokens_FSKP))

    @cached_property
    def points(self) -> Points:
        """Every candidate as the law sees it, (F, S, K, P)."""
        return law_points(self.law, self.space, self.space.recurrences, np.maximum(self.tokens_FSKP, 1.0))

    @cached_property
    def gain_SKP(self) -> FloatArray:
        """What looping adds, in loop blocks."""
        return np.broadcast_to(self.law.gain(self.points), self.space.shape)

    @cached_property
    def extrapolated_FSKP(self) -> dict[str, BoolArray]:
        """Axis by axis, where the law is used outside the range it was fitted on."""
        shape = self.tokens_FSKP.shape
        return {axis: np.broadcast_to(flags, shape) for axis, flags in self.law.extrapolated(self.points).items()}

    @cached_property
    def allowed_FSKP(self) -> BoolArray:
        """Where tokens are left and, if capped, inference is cheap enough and training affordable."""
        allowed = self.tokens_FSKP > 0
        if self.budget.inference_flops is not None:
            allowed = allowed & (self.inference_SKP <= self.budget.inference_flops * SLACK)
        if self.budget.tokens is not None and self.budget.flops is not None:
            spent = self.train_flops_FSKP + self.inference_SKP * self.budget.serve_tokens
            allowed = allowed & (spent <= self.flops[:, None, None, None] * SLACK)
        return allowed

    def optimum(self, memory_B: FloatArray | None = None) -> IntArray:
        """Return the flat index over (S, K, P) of the best design, (Z, F, B); -1 where none is left.

        ``memory_B`` are memory budgets in bytes; without them the budget's own serves, or none.
        """
        if memory_B is None:
            memory_B = np.array([np.inf if self.budget.memory is None else self.budget.memory])
        usable = self.admissible_ZFSKP & self.allowed_FSKP
        loss = np.where(usable, self.loss_ZFSKP, np.inf).reshape(*usable.shape[:2], -1)
        return best_within(loss, self.memory_SKP.ravel(), memory_B)


def evaluate(
    law: ScalingLaw,
    space: Space,
    budget: Budget,
    *,
    flops: FloatArray | None = None,
    eps: float | None = None,
    rule: Rule = Rule.PAPER,
    resamples: bool = True,
) -> Grid:
    """Evaluate every candidate of ``space``; ``flops`` replaces the budget's compute by several budgets at once."""
    if flops is None:
        flops = np.array([np.inf if budget.flops is None else budget.flops])
    laws = 1 + (len(law.resamples) if resamples and law.resamples is not None else 0)
    check_size(int(np.prod(space.shape)) * len(flops), laws)
    # The rule compares R with R - 1, which may not be asked for: evaluate both, then pick.
    passes = np.unique(np.concatenate([space.recurrences, np.maximum(space.recurrences - 1, 1)]))
    tokens = _matched_tokens(space, passes, budget, flops)
    loss = _losses(law, space, passes, tokens, resamples)
    here = np.searchsorted(passes, space.recurrences)
    before = np.searchsorted(passes, np.maximum(space.recurrences - 1, 1))
    asked, one_less = loss[..., here], loss[..., before]
    return Grid(
        law=law,
        space=space,
        budget=budget,
        eps=tolerance(law, eps, rule),
        rule=rule,
        flops=flops,
        tokens_FSKP=tokens[..., here],
        loss_ZFSKP=asked,
        pass_gain_ZFSKP=_gain(one_less, asked, axis=-1),
        expert_gain_ZFSKP=_gain(np.roll(asked, 1, axis=-2), asked, axis=-2),
    )


def law_points(law: ScalingLaw, space: Space, recurrences: IntArray, tokens: FloatArray) -> Points:
    """Return the grid's candidates with their counts as ``law`` counts them."""
    extra = space.embedding if law.counts is Counting.WITH_EMBEDDINGS else 0.0
    return Points(
        active=(space.active + extra)[..., None],
        tokens=tokens,
        recurrence=recurrences.astype(float),
        experts=space.experts[..., None],
        loop=space.loop[..., None],
        total=(space.total + extra)[..., None],
    )


def _matched_tokens(space: Space, passes: IntArray, budget: Budget, flops: FloatArray) -> FloatArray:
    """Return D on (F, S, K, P): what compute allows after serving is paid, at most what there is to train on."""
    unrolled = space.unrolled(passes)
    if budget.tokens is not None:
        return np.full((len(flops), *unrolled.shape), budget.tokens)
    if not np.isfinite(flops).all() or np.any(flops <= 0):
        raise InputError("budget: training compute should be finite and above zero")
    tokens = np.asarray(costs.tokens_for(flops[:, None, None, None], unrolled, budget.serve_tokens))
    if budget.max_tokens is not None:
        tokens = np.minimum(tokens, budget.max_tokens)
    return np.asarray(np.maximum(tokens, 0.0))


def _losses(law: ScalingLaw, space: Space, passes: IntArray, tokens: FloatArray, resamples: bool) -> FloatArray:
    points = law_points(law, space, passes, np.maximum(tokens, 1.0))
    loss = law(points)[None]
    if resamples and law.resamples is not None:
        loss = np.concatenate([loss, law.resampled(points)])
    return np.where(tokens > 0, loss, np.inf)


def _gain(before: FloatArray, after: FloatArray, axis: int) -> FloatArray:
    """Return the loss that a step saves; the first along ``axis`` has no step to justify."""
    with np.errstate(invalid="ignore"):  # no tokens on either side: infinite minus infinite
        gain = before - after
    first = [slice(None)] * gain.ndim
    first[axis] = slice(0, 1)
    gain[tuple(first)] = np.inf
    return gain
