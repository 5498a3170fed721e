"""Budgets, the limits they set, and every candidate's loss and costs at once.

Shapes: Z laws (the law itself first, then its resamples), F compute budgets, S sizes, K expert counts, P recurrences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscale.architecture import Space, check_candidates
from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.core.errors import InputError, choice
from loopscale.core.quantities import bits_of, bytes_of, count_of, format_bytes, format_count, plain
from loopscale.scaling import Points, ScalingLaw, costs


class Rule(Enum):
    """How the choice is made among the designs that fit."""

    PAPER = "paper"
    """Lowest loss among those whose last pass and last expert step each gain at least eps."""
    LOSS = "loss"
    """Lowest loss, however little the last step gains."""


def rule_of(rule: Rule | str) -> Rule:
    """Return the rule that ``rule`` is or names."""
    return rule if isinstance(rule, Rule) else choice(Rule, rule, "rule")


LEAST_MEMORY = 1e6
"""Bytes below which an amount of memory is taken for a missing unit."""


@dataclass(frozen=True)
class Budget:
    """Limits on a design. None means no limit; compute or tokens must be given.

    Every quantity may be a number or text, as ``Budget(flops="5e21", memory="3GB", bits="int4")``.
    """

    flops: float | None = None
    """Training compute, and serving compute where ``serve_tokens`` is set."""
    tokens: float | None = None
    """Training tokens, when they are given rather than what compute allows."""
    max_tokens: float | None = None
    """The most tokens there are to train on; compute beyond them stays unspent."""
    memory: float | None = None
    """Bytes for the weights, and for the KV cache where ``context`` is set."""
    bits: float = 16
    """Bits a weight is stored in."""
    context: int | None = None
    """Context length whose KV cache must fit beside the weights."""
    batch: int = 1
    kv_bits: float = 16
    kept_passes: int | None = None
    """Passes that keep their own keys and values; None keeps all."""
    kv_window: int | None = None
    """Positions that the passes after ``kept_passes`` keep; None keeps none."""
    inference_flops: float | None = None
    """The most FLOPs a generated token may cost."""
    unique_tokens: float | None = None
    """Different tokens there are; training beyond them repeats them, which counts for less."""
    serve_tokens: float = 0.0
    """Tokens served over the model's life, paid from ``flops`` at 2 N_unroll each."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not (field.name == "serve_tokens" and value == 0):
                object.__setattr__(self, field.name, _quantity(field.name, value))
        if self.flops is None and self.tokens is None:
            raise InputError("budget: give training compute (flops) or training tokens")
        if self.tokens is not None and self.max_tokens is not None:
            raise InputError("budget: give tokens or max_tokens, not both")
        if self.memory is not None and self.memory < LEAST_MEMORY:
            raise InputError(
                f"budget: memory is {self.memory:g} bytes, too little for any model; write a unit, like '16GB'"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the limits that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def _quantity(name: str, value: object) -> float:
    what = f"budget: {name}"
    if name == "memory":
        return bytes_of(value, what)
    if name in ("bits", "kv_bits"):
        return bits_of(value, what)
    number = count_of(value, what)
    if name not in ("context", "batch", "kept_passes", "kv_window"):
        return number
    if number != round(number):
        raise InputError(f"{what} is {number:g}; it should be a whole number")
    return int(number)


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


SLACK = 1 + 1e-12
"""Relative tolerance at a limit: a design that needs exactly the limit fits despite rounding."""


@dataclass(frozen=True, eq=False)
class Limit:
    """One limit of a plan: what each candidate needs, how much there is, and how to say it."""

    name: str
    """serving, memory, inference or compute."""
    need: FloatArray
    """Broadcasts to (F, S, K, P)."""
    cap: FloatArray | float
    """Broadcasts to the same."""
    write: Callable[[float], str]
    """Write an amount with its unit."""
    excluded: str
    """Why a candidate is ruled out; ``{need}`` is what it needs."""
    empty: str
    """Why nothing fits; ``{smallest}`` is the candidate with the least need and ``{need}`` what it needs."""
    field: str
    """The field of the budget that sets the cap."""

    @cached_property
    def met(self) -> BoolArray:
        """Where the need is within the cap."""
        return np.asarray(self.need <= self.cap * SLACK)


def _flops(value: float) -> str:
    return f"{format_count(value)} FLOPs"


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
            kept_window=self.budget.kv_window,
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
        tokens = np.maximum(self.tokens_FSKP, 1.0)
        return law_points(self.law, self.space, self.space.recurrences, tokens, self.budget.unique_tokens)

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
    def trust_FSKP(self) -> NDArray[np.str_]:
        """The level of trust in each loss."""
        return np.broadcast_to(self.law.trust_levels(self.points), self.tokens_FSKP.shape)

    @cached_property
    def band_FSKP(self) -> tuple[FloatArray, FloatArray]:
        """The 90% band of each loss, of the kind that :func:`interval_kind` says; infinite where the loss is."""
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
        budget, cap_F = self.budget, self.flops[:, None, None, None]
        served = self.inference_SKP * budget.serve_tokens
        limits = []
        if budget.serve_tokens and budget.tokens is None:
            limits.append(
                Limit(
                    "serving", served * (1 + 1e-9), cap_F, _flops, "serving exceeds the compute",
                    f"flops: serving {format_count(budget.serve_tokens)} tokens leaves no compute to train; "
                    "the smallest candidate, {smallest}, needs {need} for it", "serve_tokens",
                )
            )  # fmt: skip
        if budget.memory is not None:
            limits.append(
                Limit(
                    "memory", self.memory_SKP, budget.memory, format_bytes, "needs {need} of memory",
                    f"memory: nothing fits in {format_bytes(budget.memory)} at {budget.bits:g} bits; "
                    "the smallest candidate, {smallest}, needs {need}", "memory",
                )
            )  # fmt: skip
        if budget.inference_flops is not None:
            limits.append(
                Limit(
                    "inference", self.inference_SKP, budget.inference_flops, _flops,
                    "costs {need} per token",
                    f"inference FLOPs: nothing costs as little as {format_count(budget.inference_flops)} a token; "
                    "the smallest candidate, {smallest}, needs {need}", "inference_flops",
                )
            )  # fmt: skip
        if budget.tokens is not None and budget.flops is not None:
            limits.append(
                Limit(
                    "compute", self.train_flops_FSKP + served, cap_F, _flops, "needs {need} of training",
                    "flops: no candidate can be trained on so many tokens; the smallest candidate, {smallest}, "
                    "needs {need}", "flops",
                )
            )  # fmt: skip
        return tuple(limits)

    def within(self, lifted: str | None = None) -> BoolArray:
        """Return where every limit is met, (F, S, K, P); the limit called ``lifted`` is not applied."""
        met = self.tokens_FSKP > 0
        for limit in self.limits:
            if limit.name != lifted:
                met = met & limit.met
        return met

    def nothing_fits(self) -> str:
        """Say which limit leaves nothing, and what the smallest candidate would need."""
        for limit in self.limits:
            if not np.any(limit.met):
                need = np.broadcast_to(limit.need, self.tokens_FSKP.shape)[0]
                flat = int(np.argmin(need))
                return limit.empty.format(smallest=self.label(flat), need=limit.write(float(need.ravel()[flat])))
        return "no candidate meets all limits together; loosen memory, inference FLOPs or compute"

    def label(self, flat: int) -> str:
        """Name the design at a flat index over (S, K, P)."""
        s, k, p = np.unravel_index(flat, self.space.shape)
        return design_label(self.space.names[s], self.space.experts[s, k], int(self.space.recurrences[p]))

    def optimum(self, memory_B: FloatArray | None = None) -> IntArray:
        """Return the flat index over (S, K, P) of the best design, (Z, F, B); -1 where none is left.

        ``memory_B`` are memory budgets in bytes; without them the budget's own serves, or none.
        """
        if memory_B is None:
            memory_B = np.array([np.inf if self.budget.memory is None else self.budget.memory])
        usable_ZFSKP = self.admissible_ZFSKP & self.within(lifted="memory")
        usable = usable_ZFSKP.reshape(*usable_ZFSKP.shape[:2], -1)
        kept = np.flatnonzero(usable.any(axis=(0, 1)))  # most candidates are admissible under no law
        if not kept.size:
            return np.full((*usable.shape[:2], len(memory_B)), -1)
        loss = np.where(usable[..., kept], self.loss_ZFSKP.reshape(usable.shape)[..., kept], np.inf)
        best = best_within(loss, self.memory_SKP.ravel()[kept], memory_B)
        return np.where(best >= 0, kept[np.maximum(best, 0)], -1)


def design_label(size: str, experts: float, recurrence: int) -> str:
    """Name a design in a few characters, as tables and figures do."""
    return f"{size} E={plain(experts):g} R={recurrence}"


def interval_kind(law: ScalingLaw) -> str | None:
    """Return which interval the law can give: "predictive" for one new run, else "law", which is narrower, or None."""
    if law.resamples is None:
        return None
    return "law" if law.spread is None else "predictive"


def loss_band(law: ScalingLaw, points: Points) -> tuple[FloatArray, FloatArray]:
    """Return the 90% interval of the loss at each point, of the kind that :func:`interval_kind` says."""
    return law.interval(points) if law.spread is None else law.predictive_interval(points)


def loss_interval(law: ScalingLaw, points: Points) -> dict[str, Any] | None:
    """Return the 90% interval of the loss at one point with its kind and basis; None where the law has no resamples."""
    if law.resamples is None:
        return None
    low, high = loss_band(law, points)
    kind, basis = interval_kind(law), law.resampled_by or "resampled laws"
    return {"low": float(low), "high": float(high), "level": 0.9, "kind": kind, "basis": basis}


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
    rule = rule_of(rule)
    if flops is None:
        flops = np.array([np.inf if budget.flops is None else budget.flops])
    laws = 1 + (len(law.resamples) if resamples and law.resamples is not None else 0)
    check_candidates(int(np.prod(space.shape)) * len(flops), laws)
    # The rule compares R with R - 1, which may not be asked for: evaluate both, then pick.
    passes = np.unique(np.concatenate([space.recurrences, np.maximum(space.recurrences - 1, 1)]))
    tokens = _matched_tokens(space, passes, budget, flops)
    loss = _losses(
        law, law_points(law, space, passes, np.maximum(tokens, 1.0), budget.unique_tokens), tokens, resamples
    )
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


def _matched_tokens(space: Space, passes: IntArray, budget: Budget, flops: FloatArray) -> FloatArray:
    """Return D on (F, S, K, P): what compute allows after serving is paid, at most what there is to train on."""
    unrolled = space.unrolled(passes)
    if budget.tokens is not None:
        return np.full((len(flops), *unrolled.shape), budget.tokens)
    if not np.isfinite(flops).all() or np.any(flops <= 0):
        raise InputError("budget: training compute should be finite and above zero")
    tokens = costs.tokens_for(flops[:, None, None, None], unrolled, budget.serve_tokens)
    if budget.max_tokens is not None:
        tokens = np.minimum(tokens, budget.max_tokens)
    return np.asarray(np.maximum(tokens, 0.0))


def _losses(law: ScalingLaw, points: Points, tokens: FloatArray, resamples: bool) -> FloatArray:
    loss = law.resampled(points, own=True) if resamples and law.resamples is not None else law(points)[None]
    return loss if np.all(tokens > 0) else np.where(tokens > 0, loss, np.inf)


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
