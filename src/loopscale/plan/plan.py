"""One call for a plan: budgets in, the choice and its reasons out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from loopscale.arrays import BoolArray, FloatArray, IntArray
from loopscale.errors import InputError
from loopscale.files import write_json
from loopscale.laws import ScalingLaw, published
from loopscale.plan.budget import Budget, Rule
from loopscale.plan.grid import SLACK, Grid, Space, agreement, evaluate, ladder_space
from loopscale.quantities import format_bytes, format_count, format_size, plain
from loopscale.tables import Table


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


SCHEMA = 1
COSTS = ("memory", "inference")
"""What a Pareto front may be drawn against."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A chosen design, the candidates it was chosen from, and how sure the choice is."""

    grid: Grid
    chosen: int
    """The choice, as a flat index over (S, K, P)."""
    agreement: float | None
    """The share of the law's resamples that choose the same design; None where it has none."""

    @property
    def law(self) -> ScalingLaw:
        """The law that the plan trusts."""
        return self.grid.law

    @cached_property
    def choice(self) -> Candidate:
        """The design to train."""
        return candidate(self.grid, self.chosen, self.chosen)

    @cached_property
    def ranked(self) -> IntArray:
        """Every candidate from the lowest loss up, the admissible before the others."""
        loss = self.grid.loss_ZFSKP[0, 0].ravel()
        return np.lexsort((loss, ~self._usable.ravel()))

    @property
    def lead(self) -> float | None:
        """How much loss the choice saves over the best other admissible design; None when there is no other."""
        others = [flat for flat in self.ranked[:2] if flat != self.chosen and self._usable.ravel()[flat]]
        return float(self.grid.loss_ZFSKP[0, 0].ravel()[others[0]] - self.choice.loss) if others else None

    def candidates(self, limit: int | None = None) -> list[Candidate]:
        """Return the ranked candidates, each with what speaks against it."""
        return [self._judged(int(flat)) for flat in self.ranked[:limit]]

    def rivals(self, count: int = 3) -> list[Candidate]:
        """Return the near rivals: one step from the choice along each axis, then the best admissible others."""
        at = np.array(np.unravel_index(self.chosen, self.grid.space.shape))
        steps = [at + sign * np.eye(3, dtype=int)[axis] for axis in (2, 1, 0) for sign in (-1, 1)]
        inside = [step for step in steps if np.all((step >= 0) & (step < self.grid.space.shape))]
        flats = [int(np.ravel_multi_index(tuple(step), self.grid.space.shape)) for step in inside]
        best = [int(flat) for flat in self.ranked[: count + len(flats) + 1] if self._usable.ravel()[flat]]
        runners = [flat for flat in best if flat != self.chosen and flat not in flats][:count]
        return [self._judged(flat) for flat in flats + runners]

    def pareto(self, cost: str) -> list[Candidate]:
        """Return the designs that no other beats in both loss and ``cost`` ("memory" or "inference").

        The limit on that cost is lifted; every other limit and the rule hold.
        """
        if cost not in COSTS:
            raise InputError(f"pareto: cost is {cost!r}; it should be 'memory' or 'inference'")
        return [self._judged(int(flat)) for flat in self._front(cost)]

    def votes(self) -> list[tuple[Candidate, float]]:
        """Return each design that some resampled law chooses, with the share that does, largest first."""
        picks = self.grid.optimum()[1:, 0, 0]
        found, counts = np.unique(picks[picks >= 0], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return [(self._judged(int(found[i])), float(counts[i] / len(picks))) for i in order]

    def table(self, limit: int | None = None) -> Table:
        """Return the ranked candidates as a table."""
        return Table.from_records([each.to_dict() for each in self.candidates(limit)])

    def designs(self) -> Table:
        """Return every candidate that can be trained, with costs and loss, and whether it is usable or on a front."""
        grid, space = self.grid, self.grid.space
        fronts = {cost: self._front(cost) for cost in COSTS}
        flat = np.flatnonzero(np.isfinite(grid.loss_ZFSKP[0, 0]).ravel())
        s, k, p = np.unravel_index(flat, space.shape)
        return Table.from_arrays(
            flat.shape,
            rung=np.array(space.names)[s],
            experts=space.experts[s, k],
            recurrence=space.recurrences[p],
            memory=grid.memory_SKP.ravel()[flat],
            inference=grid.inference_SKP.ravel()[flat],
            loss=grid.loss_ZFSKP[0, 0].ravel()[flat],
            usable=self._usable.ravel()[flat],
            chosen=flat == self.chosen,
            on_memory_front=np.isin(flat, fronts["memory"]),
            on_inference_front=np.isin(flat, fronts["inference"]),
        )

    def to_dict(self, limit: int = 20) -> dict[str, Any]:
        """Return the plan as plain values, with the first ``limit`` candidates."""
        grid = self.grid
        return {
            "kind": "plan",
            "schema": SCHEMA,
            "law": self.law.name,
            "rule": grid.rule.value,
            "eps": grid.eps,
            "budget": grid.budget.to_dict(),
            "choice": self.choice.to_dict(),
            "lead": self.lead,
            "agreement": self.agreement,
            "votes": [{"design": each.label, "share": share} for each, share in self.votes()],
            "rivals": [each.to_dict() for each in self.rivals()],
            "candidates": [each.to_dict() for each in self.candidates(limit)],
            "candidates_in_all": int(np.prod(grid.space.shape)),
            "pareto": {cost: [_front(each, cost) for each in self.pareto(cost)] for cost in COSTS},
        }

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        write_json(path, self.to_dict())

    def _front(self, cost: str) -> IntArray:
        """Return the flat indices of the designs on a Pareto front, by rising cost."""
        costs = (self.grid.memory_SKP if cost == "memory" else self.grid.inference_SKP).ravel()
        usable = (self.grid.admissible_ZFSKP[0, 0] & self._within(lifted=cost)).ravel()
        loss = np.where(usable, self.grid.loss_ZFSKP[0, 0].ravel(), np.inf)
        order = np.lexsort((loss, costs))
        best = np.minimum.accumulate(np.concatenate([[np.inf], loss[order][:-1]]))
        return np.asarray(order[loss[order] < best])

    @cached_property
    def _usable(self) -> BoolArray:
        return np.asarray(self.grid.admissible_ZFSKP[0, 0] & self._within())

    def _within(self, lifted: str | None = None) -> BoolArray:
        grid = self.grid
        within = grid.tokens_FSKP[0] > 0 if lifted == "inference" else grid.allowed_FSKP[0]
        if grid.budget.memory is not None and lifted != "memory":
            within = within & (grid.memory_SKP <= grid.budget.memory * SLACK)
        return np.asarray(within)

    def _judged(self, flat: int) -> Candidate:
        return self.choice if flat == self.chosen else candidate(self.grid, flat, self.chosen)


def plan(
    budget: Budget,
    space: Space | None = None,
    law: ScalingLaw | None = None,
    *,
    eps: float | None = None,
    rule: Rule = Rule.PAPER,
) -> Plan:
    """Choose the design with the lowest predicted loss among those that fit the budget and pass the rule.

    An axis of ``space`` with one value is given; the others are optimised.
    """
    grid = evaluate(law or published(), space or ladder_space(), budget, eps=eps, rule=rule)
    picks = grid.optimum()
    if picks[0, 0, 0] < 0:
        raise InputError(_nothing_fits(grid))
    shared = agreement(picks)[0, 0]
    return Plan(grid, int(picks[0, 0, 0]), None if np.isnan(shared) else float(shared))


def _front(each: Candidate, cost: str) -> dict[str, Any]:
    value = each.inference_flops if cost == "inference" else each.weight_bytes + each.kv_bytes
    return {"design": each.label, cost: value, "loss": each.loss}


def _nothing_fits(grid: Grid) -> str:
    """Say which limit leaves nothing, and what the smallest candidate would need."""
    budget, served = grid.budget, grid.inference_SKP * grid.budget.serve_tokens
    if not np.any(grid.tokens_FSKP > 0):
        need = _least(grid, served, _flops)
        return f"flops: serving {format_count(budget.serve_tokens)} tokens leaves no compute to train; {need} for it"
    if budget.memory is not None and not np.any(grid.memory_SKP <= budget.memory):
        need = _least(grid, grid.memory_SKP, format_bytes)
        return f"memory: nothing fits in {format_bytes(budget.memory)} at {budget.bits:g} bits; {need}"
    if budget.inference_flops is not None and not np.any(grid.inference_SKP <= budget.inference_flops):
        need = _least(grid, grid.inference_SKP, _flops)
        return f"inference FLOPs: nothing costs as little as {format_count(budget.inference_flops)} a token; {need}"
    if not np.any(grid.allowed_FSKP):
        need = _least(grid, grid.train_flops_FSKP[0] + served, _flops)
        return f"flops: no candidate can be trained on so many tokens; {need}"
    return "no candidate meets all limits together; loosen memory, inference FLOPs or compute"


def _least(grid: Grid, need: FloatArray, write: Callable[[float], str]) -> str:
    flat = int(np.argmin(need))
    return f"the smallest candidate, {candidate(grid, flat, flat).label}, needs {write(float(need.ravel()[flat]))}"


def _flops(value: float) -> str:
    return f"{format_count(value)} FLOPs"


EXTRAPOLATED = "†"
"""Marks a number for which the law is used outside the range it was fitted on."""


def mark(text: str, extrapolated: bool) -> str:
    """Return ``text`` with the sign of extrapolation where it applies."""
    return f"{text}{EXTRAPOLATED}" if extrapolated else text


def legend(axes: Iterable[str]) -> str:
    """Return the line that explains the sign, or nothing when it was not used."""
    found = sorted(set(axes))
    return f"{EXTRAPOLATED} extrapolated: outside the range the law was fitted on ({', '.join(found)})" if found else ""


def answer(found: Plan) -> str:
    """Say what to train, in a sentence."""
    choice = found.choice
    return (
        f"Train {choice.rung} with {choice.experts:g} expert{'s' if choice.experts != 1 else ''} for each active "
        f"one and {choice.recurrence} pass{'es' if choice.recurrence != 1 else ''}, on {format_count(choice.tokens)} "
        f"tokens: loss {mark(f'{choice.loss:.4f}', bool(choice.extrapolated))}"
    )


def costs(found: Plan) -> str:
    """Say what the choice holds and costs."""
    choice, budget = found.choice, found.grid.budget
    weights = f"{format_bytes(choice.weight_bytes)} of weights at {budget.bits:g} bits"
    cache = f" + {format_bytes(choice.kv_bytes)} of KV cache" if choice.kv_bytes else ""
    limit = "" if budget.memory is None else f" (of {format_bytes(budget.memory)})"
    return (
        f"{format_size(choice.active)} active, {format_size(choice.total)} total, {format_size(choice.effective)} "
        f"effective; {weights}{cache}{limit}; {choice.train_flops:.3g} FLOPs of training, "
        f"{choice.inference_flops:.3g} a generated token"
    )


def certainty(found: Plan) -> str:
    """Say on which law and rule the choice rests, and how sure it is."""
    grid = found.grid
    rule = f"eps {grid.eps:g}" if grid.rule is Rule.PAPER else "lowest loss alone"
    said = f"{law_in_words(found.law)}, {rule}"
    if found.lead is not None:
        close = ", less than eps: a toss-up" if found.lead < grid.eps else ""
        said += f"; lead over the next admissible design {found.lead:.4f}{close}"
    if found.agreement is None:
        return said
    votes = ", ".join(f"{each.label} {share:.0%}" for each, share in found.votes()[:4])
    return f"{said}; {found.agreement:.0%} of resampled laws agree ({votes})"


def law_in_words(law: ScalingLaw) -> str:
    """Name the law as results should: published ones by name, files by the name inside."""
    resampled = "" if law.resamples is None else f" with {len(law.resamples)} resampled laws"
    return f"law {law.name}{resampled}"
