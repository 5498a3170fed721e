"""One call for a plan: budgets in, the choice and its reasons out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from loopscale.architecture import RUNG_EXPERTS, RUNG_RECURRENCES, RUNGS, Space, ladder_space, size_space
from loopscale.core.arrays import BoolArray, IntArray
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.files import finite, write_json
from loopscale.core.quantities import plain
from loopscale.core.tables import Table
from loopscale.planning.grid import (
    Budget,
    Grid,
    Rule,
    design_label,
    evaluate,
    interval_kind,
    loss_band,
    loss_interval,
    near_agreement,
    rule_of,
)
from loopscale.planning.text import sentences, short, table_html, uncertainty_text
from loopscale.scaling import Points, ScalingLaw, Trust, find_law, with_repetition


@dataclass(frozen=True)
class Candidate:
    """A design and everything the planner knows of it. Counts leave embeddings out; bytes include them."""

    rung: str
    width: float | None
    """None, like ``layers``, for a model known by its size alone."""
    layers: float | None
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
    """The same as a sentence; ``chosen`` for the choice."""
    label: str = ""
    """The design in a few characters, like ``1.0B E=8 R=2``."""
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        object.__setattr__(self, "extrapolated", tuple(self.extrapolated))
        object.__setattr__(self, "label", design_label(self.rung, self.experts, self.recurrence))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "extrapolated": list(self.extrapolated)}


def candidate(grid: Grid, flat: int, chosen: int) -> Candidate:
    """Return the candidate at a flat index over (S, K, P), at the first compute budget, with its verdict."""
    at = tuple(int(index) for index in np.unravel_index(flat, grid.space.shape))
    (s, k, p), space = at, grid.space
    low, high = _spread(grid, at)
    ruled_out_by, verdict = _judged(grid, at, flat, chosen)
    return Candidate(
        rung=space.names[s],
        width=_known(space.width[s, k]),
        layers=_known(space.layers[s, k]),
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


def _known(value: float) -> float | None:
    return plain(value) if np.isfinite(value) else None


def _judged(grid: Grid, at: tuple[int, ...], flat: int, chosen: int) -> tuple[str | None, str]:
    if flat == chosen:
        return None, "chosen"
    if (exclusion := _exclusion(grid, at)) is not None:
        return exclusion
    lost = grid.loss_ZFSKP[(0, 0, *at)] - grid.loss_ZFSKP[0, 0].ravel()[chosen]
    return None, f"loss {lost:.4f} higher"


def _exclusion(grid: Grid, at: tuple[int, ...]) -> tuple[str, str] | None:
    """Return what rules a design out and how to say it, the hardest limit first; None when nothing does."""
    shape = grid.tokens_FSKP.shape
    for limit in grid.limits:
        if not np.broadcast_to(limit.met, shape)[(0, *at)]:
            need = float(np.broadcast_to(limit.need, shape)[(0, *at)])
            return limit.name, limit.excluded.format(need=limit.write(need))
    if grid.rule is Rule.LOSS:
        return None
    if not (gain := grid.pass_gain_ZFSKP[(0, 0, *at)]) >= grid.eps:
        return "pass", f"pass {int(grid.space.recurrences[at[2]])} {_too_little(gain)}"
    if not (gain := grid.expert_gain_ZFSKP[(0, 0, *at)]) >= grid.eps:
        before, after = grid.space.experts[at[0], at[1] - 1], grid.space.experts[at[0], at[1]]
        return "experts", f"E {before:g} → {after:g} {_too_little(gain)}"
    return None


def _too_little(gain: float) -> str:
    return f"gains only {gain:.4f}" if gain >= 0 else f"raises the loss {-gain:.4f}"


def _spread(grid: Grid, at: tuple[int, ...]) -> tuple[float | None, float | None]:
    if len(grid.loss_ZFSKP) == 1:
        return None, None
    losses_Z = grid.loss_ZFSKP[1:, 0][:, at[0], at[1], at[2]]
    if not np.isfinite(losses_Z).all():  # serving leaves no compute to train it
        return None, None
    low, high = np.percentile(losses_Z, [5, 95])
    return float(low), float(high)


SCHEMA = 1
COSTS = ("memory", "inference")
"""What a Pareto front may be drawn against."""
KV_WINDOW = 512
"""Positions of the windowed KV policy."""
TRAINING_CONTEXT = 2048
"""Context that real training costs are counted at: the paper's."""
AXIS_TEXT = {"size": "size", "experts": "number of experts", "recurrence": "number of passes"}
RELAXED = ("flops", "memory", "inference_flops", "max_tokens")
"""Limits whose price is worked out: what twice as much of each would buy."""


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """A chosen design, the candidates it was chosen from, and how far the choice can be trusted.

    One that was read from a file holds what the file holds; the whole grid of candidates is not stored.
    """

    evaluated: Grid | None
    """Every candidate's loss and costs."""
    chosen: int
    """The choice, as a flat index over (S, K, P)."""
    agreement: float | None
    """The share of resampled laws under which the choice is within eps of the best; None where there are none."""
    stored: Mapping[str, Any] | None = None
    """The content of the file that the plan was read from."""

    @property
    def grid(self) -> Grid:
        """Every candidate's loss and costs, which a plan that was read from a file lacks."""
        if self.evaluated is None:
            raise InputError(
                "this plan was read from a file, which does not hold every candidate; plan again for what is missing"
            )
        return self.evaluated

    @property
    def law(self) -> ScalingLaw:
        """The law that the plan uses."""
        return self.grid.law

    @property
    def law_name(self) -> str:
        """The law by name."""
        return str(self.stored["law"]) if self.stored is not None else self.law.name

    @property
    def rule(self) -> Rule:
        """The rule of the choice."""
        return Rule(self.stored["rule"]) if self.stored is not None else self.grid.rule

    @property
    def eps(self) -> float:
        """The smallest gain that justifies a step."""
        return float(self.stored["eps"]) if self.stored is not None else self.grid.eps

    @property
    def budget(self) -> Budget:
        """The limits of the plan."""
        return Budget(**self.stored["budget"]) if self.stored is not None else self.grid.budget

    @cached_property
    def choice(self) -> Candidate:
        """The design to train."""
        if self.stored is not None:
            return Candidate(**self.stored["choice"])
        return candidate(self.grid, self.chosen, self.chosen)

    @cached_property
    def trust(self) -> Trust | None:
        """How far the prediction for the choice can be trusted; None for a plan of version 0.1."""
        if self.stored is not None:
            stored = self.stored.get("trust")
            return None if stored is None else Trust(stored["level"], tuple(stored["reasons"]), stored["factors"])
        trust = self.law.trust(_points(self.grid, self.chosen))
        reasons = [f"the best {AXIS_TEXT[edge['axis']]} is at the edge of the search" for edge in self.edge]
        if self.budget.unique_tokens is not None and self.choice.tokens > self.budget.unique_tokens:
            times_seen = self.choice.tokens / self.budget.unique_tokens
            reasons.append(
                f"each token is seen {times_seen:.3g} times, discounted as data-constrained-2023 found on dense models"
            )
        return trust.noting(*reasons, uncertainty_text(self.uncertainty))

    @property
    def uncertainty(self) -> str:
        """What the interval and the agreement rest on, or why there are none."""
        return str(self.stored.get("uncertainty", "not stored")) if self.stored is not None else self.law.uncertainty

    @cached_property
    def edge(self) -> list[dict[str, Any]]:
        """Axes on which the choice is the last value searched, where a further one might be better."""
        if self.stored is not None:
            return list(self.stored.get("edge", []))
        return edges(self.grid.space, self.chosen)

    @cached_property
    def ranked(self) -> IntArray:
        """Every candidate from the lowest loss up, the admissible before the others."""
        loss = self.grid.loss_ZFSKP[0, 0].ravel()
        return np.lexsort((loss, ~self._usable.ravel()))

    @property
    def lead(self) -> float | None:
        """How much loss the choice saves over the best other admissible design; None when there is no other."""
        if self.stored is not None:
            return self.stored["lead"]  # type: ignore[no-any-return]
        others = [flat for flat in self.ranked[:2] if flat != self.chosen and self._usable.ravel()[flat]]
        return float(self.grid.loss_ZFSKP[0, 0].ravel()[others[0]] - self.choice.loss) if others else None

    def candidates(self, limit: int | None = None) -> list[Candidate]:
        """Return the ranked candidates, each with its verdict; those that the file holds, if it was read from one."""
        if self.stored is not None:
            return [Candidate(**row) for row in self.stored["candidates"][:limit]]
        return [self._judged(int(flat)) for flat in self.ranked[:limit]]

    def rivals(self, count: int = 3) -> list[Candidate]:
        """Return the closest alternatives: one step from the choice along each axis, then the best admissible others.

        A plan that was read from a file has those that were saved.
        """
        if self.stored is not None:
            return [Candidate(**row) for row in self.stored["rivals"]]
        shape, strides = self.grid.space.shape, (self._size_stride, 1, 1)
        at = np.array(np.unravel_index(self.chosen, shape))
        steps = [at + sign * strides[axis] * np.eye(3, dtype=int)[axis] for axis in (2, 1, 0) for sign in (-1, 1)]
        inside = [step for step in steps if np.all((step >= 0) & (step < shape))]
        flats = [int(np.ravel_multi_index(tuple(step), shape)) for step in inside]
        best = [int(flat) for flat in self.ranked[: count + len(flats) + 1] if self._usable.ravel()[flat]]
        best = best if self._size_stride == 1 else []  # on a fine grid the best others are all but the same design
        runners = [flat for flat in best if flat != self.chosen and flat not in flats][:count]
        return [self._judged(flat) for flat in flats + runners]

    @property
    def _size_stride(self) -> int:
        """Steps along the sizes to a different design: one rung, or a factor of 1.5 where sizes are continuous."""
        active = self.grid.space.active[:, 0]
        if self.grid.space.kind not in ("continuous", "sizes") or len(active) < 2:
            return 1
        return max(1, round(float(np.log(1.5) / np.log(active[1] / active[0]))))

    @property
    def tied_sizes(self) -> tuple[float, float] | None:
        """The active sizes within eps of the best at its experts and recurrence, where sizes are continuous."""
        if self.stored is not None or self._size_stride == 1:
            return None
        _, k, p = np.unravel_index(self.chosen, self.grid.space.shape)
        close = self._usable[:, k, p] & (self.grid.loss_ZFSKP[0, 0, :, k, p] - self.choice.loss <= self._tie)
        sizes = self.grid.space.active[close, k]
        return float(sizes.min()), float(sizes.max())

    @property
    def _tie(self) -> float:
        return self.eps or self.law.eps or 0.0

    def pareto(self, cost: str) -> list[Candidate]:
        """Return the designs that no other beats in both loss and ``cost`` ("memory" or "inference").

        The limit on that cost is lifted; every other limit and the rule hold.
        """
        if cost not in COSTS:
            raise InputError(f"pareto: cost is {cost!r}; it should be 'memory' or 'inference'")
        return [self._judged(int(flat)) for flat in self._front(cost)]

    def pareto_table(self, cost: str) -> Table:
        """Return the front by rising ``cost``: design, cost, loss with its 90% band, and the level of trust in it.

        The band is that of one new run where the law knows it (``interval`` is then "predictive"), else that of the
        law alone; None where the law has no resamples.
        """
        if self.stored is not None and cost in COSTS:
            return Table.from_records(self.stored["pareto"][cost])
        if not (front := self.pareto(cost)):
            return Table({})
        low, high = self.bands(self._front(cost))
        return Table({
            "design": [row.label for row in front],
            cost: [row.inference_flops if cost == "inference" else row.weight_bytes + row.kv_bytes for row in front],
            "loss": [row.loss for row in front],
            "loss_low": low,
            "loss_high": high,
            "interval": [interval_kind(self.law)] * len(front),
            "trust": self.trust_levels(front),
        })  # fmt: skip

    def bands(self, flat: IntArray) -> tuple[list[float | None], list[float | None]]:
        """Return the ends of the 90% bands of the designs at flat indices; None where the law has no resamples."""
        if self.law.resamples is None or not len(flat):
            return [None] * len(flat), [None] * len(flat)
        low, high = loss_band(self.law, _points(self.grid, flat))
        return low.tolist(), high.tolist()

    def trust_levels(self, rows: Sequence[Candidate]) -> list[str]:
        """Return the level of trust in the loss of each candidate."""
        points = self.law.points(
            active=[row.active for row in rows],
            tokens=[max(row.tokens, 1.0) for row in rows],
            recurrence=[row.recurrence for row in rows],
            experts=[row.experts for row in rows],
            embedding=[row.embedding for row in rows],
        )
        return [str(level) for level in self.law.trust_levels(points)]

    def votes(self) -> list[tuple[str, float]]:
        """Return each design that some resampled law chooses, with the share that does, largest first."""
        if self.stored is not None:
            return [(vote["design"], vote["share"]) for vote in self.stored["votes"]]
        picks = self.grid.optimum()[1:, 0, 0]
        designs, counts = np.unique(picks[picks >= 0], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return [(self.grid.label(int(designs[i])), float(counts[i] / len(picks))) for i in order]

    @cached_property
    def sensitivities(self) -> list[dict[str, Any]]:
        """What twice as much of each limit would buy: the best design then, its loss and the loss it saves."""
        if self.stored is not None:
            return list(self.stored.get("sensitivities", []))
        rows = []
        for name in RELAXED:
            if (value := getattr(self.budget, name)) is None:
                continue
            grid, pick = search(
                self.law, self.grid.space, replace(self.budget, **{name: 2 * value}), self.eps, self.rule
            )
            loss = float(grid.loss_ZFSKP[0, 0].ravel()[pick])
            rows.append({"limit": name, "factor": 2.0, "design": grid.label(pick), "loss": loss,
                         "saved": self.choice.loss - loss, "trust": str(grid.trust_FSKP[0].ravel()[pick])})  # fmt: skip
        return sorted(rows, key=lambda row: -row["saved"])

    @property
    def binding(self) -> list[str]:
        """The limits that hold the loss up: those of which twice as much would lower it, the strongest first."""
        return [row["limit"] for row in self.sensitivities if row["saved"] > 1e-6]

    @cached_property
    def next_best(self) -> dict[str, Any] | None:
        """The design of lower loss that needs the least more than the limits allow; None where there is none."""
        if self.stored is not None:
            return self.stored.get("next_best")
        grid = self.grid
        loss, shape = grid.loss_ZFSKP[0, 0].ravel(), grid.tokens_FSKP.shape
        ratio = np.ones(loss.shape)
        for limit in grid.limits:
            ratio = np.maximum(ratio, np.broadcast_to(limit.need / limit.cap, shape)[0].ravel())
        better = grid.admissible_ZFSKP[0, 0].ravel() & (loss < self.choice.loss) & (ratio > 1)
        if not better.any():
            return None
        flat = int(np.argmin(np.where(better, ratio, np.inf)))
        found = self._judged(flat)
        return {"design": found.label, "loss": found.loss, "needs": found.verdict, "factor": float(ratio[flat]),
                "trust": self.trust_levels([found])[0]}  # fmt: skip

    @cached_property
    def kv_policies(self) -> list[dict[str, Any]]:
        """The best design for each way to keep keys and values, where a context is given and something loops.

        The law does not know what a smaller cache costs in loss.
        """
        if self.stored is not None:
            return list(self.stored.get("kv_policies", []))
        if self.budget.context is None or not self.grid.space.loop.any():
            return []
        policies: dict[str, dict[str, Any]] = {
            "all passes": {"kept_passes": None, "kv_window": None},
            "last pass": {"kept_passes": 1, "kv_window": None},
            f"first pass plus a window of {KV_WINDOW}": {"kept_passes": 1, "kv_window": KV_WINDOW},
        }
        rows = []
        for policy, limits in policies.items():
            try:
                grid, pick = search(self.law, self.grid.space, replace(self.budget, **limits), self.eps, self.rule)
            except InputError:  # nothing fits
                continue
            loss, cache = grid.loss_ZFSKP[0, 0].ravel()[pick], grid.kv_bytes_SKP.ravel()[pick]
            rows.append({"policy": policy, "design": grid.label(pick), "loss": float(loss), "kv_bytes": float(cache)})
        return rows

    @cached_property
    def real_train_flops(self) -> dict[str, float] | None:
        """Training FLOPs of the choice with output head, routers and attention scores, which 6 N_unroll D leaves out.

        ``supervised`` adds per-loop supervision: the coda and the head after every pass. None for a model that is known
        by its size alone.
        """
        if self.stored is not None:
            return self.stored.get("real_train_flops")
        s, k, _ = (int(index) for index in np.unravel_index(self.chosen, self.grid.space.shape))
        models, (S, K, _) = self.grid.space.models, self.grid.space.shape
        if len(models) != S * K:
            return None
        model, passes, tokens = models[s * K + k], self.choice.recurrence, self.choice.tokens
        plain_cost, supervised = (
            float(model.real_train_flops_per_token(passes, context=TRAINING_CONTEXT, per_loop_supervision=flag))
            for flag in (False, True)
        )
        return {"context": TRAINING_CONTEXT, "flops": plain_cost * tokens, "supervised": supervised * tokens}

    @property
    def unspent_flops(self) -> float:
        """Compute of the budget that the choice leaves unspent."""
        if self.budget.flops is None:
            return 0.0
        spent = self.choice.train_flops + self.choice.inference_flops * self.budget.serve_tokens
        left = self.budget.flops - spent
        return left if left > 1e-6 * self.budget.flops else 0.0

    @cached_property
    def interval(self) -> dict[str, Any] | None:
        """The 90% interval of the choice's loss, with what it rests on; None where the law has no resamples."""
        if self.stored is not None:
            return self.stored.get("interval")
        return loss_interval(self.law, _points(self.grid, self.chosen))

    def table(self, limit: int | None = None) -> Table:
        """Return the ranked candidates as a table, each with the level of trust in its loss.

        A plan that was read from a file has no law to tell the levels.
        """
        rows = self.candidates(limit)
        table = Table.from_records([row.to_dict() for row in rows])
        return table if self.stored is not None else Table({**table.columns, "trust": self.trust_levels(rows)})

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
        if self.stored is not None:
            return dict(self.stored)
        trust = self.trust
        return {
            "kind": "plan",
            "schema": SCHEMA,
            "law": self.law.name,
            "rule": self.rule.value,
            "eps": self.eps,
            "budget": self.budget.to_dict(),
            "choice": self.choice.to_dict(),
            "interval": self.interval,
            "uncertainty": self.uncertainty,
            "trust": None if trust is None else trust.to_dict(),
            "edge": self.edge,
            "binding": self.binding,
            "sensitivities": self.sensitivities,
            "next_best": self.next_best,
            "unspent_flops": self.unspent_flops,
            "real_train_flops": self.real_train_flops,
            "kv_policies": self.kv_policies,
            "lead": self.lead,
            "agreement": self.agreement,
            "votes": [{"design": design, "share": share} for design, share in self.votes()],
            "rivals": [rival.to_dict() for rival in self.rivals()],
            "candidates": [row.to_dict() for row in self.candidates(limit)],
            "candidates_in_all": int(np.prod(self.grid.space.shape)),
            "pareto": {cost: list(self.pareto_table(cost).records()) for cost in COSTS},
            "sentences": sentences(self),
        }

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; the loss of a design that cannot be trained at all is null there."""
        write_json(path, finite(self.to_dict()))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan that :meth:`save` or ``loopscale plan --out`` wrote, of this version or 0.1."""
        from loopscale.core.files import read_json

        return cls.from_dict(read_json(path), str(path))

    @classmethod
    def from_dict(cls, data: object, where: str = "plan") -> Plan:
        """Read a plan from plain values; ``where`` names their origin in errors."""
        from loopscale.planning.files import read_plan  # pydantic takes a moment to import

        stored = read_plan(data, where)
        return cls(None, -1, stored["agreement"], stored)

    def __repr__(self) -> str:
        return short(self)

    def _repr_html_(self) -> str:
        return table_html(self)

    def _front(self, cost: str) -> IntArray:
        """Return the flat indices of the designs on a Pareto front, by rising cost."""
        grid = self.grid
        prices = (grid.memory_SKP if cost == "memory" else grid.inference_SKP).ravel()
        usable = (grid.admissible_ZFSKP[0, 0] & grid.within(lifted=cost)[0]).ravel()
        loss = np.where(usable, grid.loss_ZFSKP[0, 0].ravel(), np.inf)
        order = np.lexsort((loss, prices))
        best = np.minimum.accumulate(np.concatenate([[np.inf], loss[order][:-1]]))
        return np.asarray(order[loss[order] < best])

    @cached_property
    def _usable(self) -> BoolArray:
        grid = self.grid
        return np.asarray(grid.admissible_ZFSKP[0, 0] & grid.within()[0])

    def _judged(self, flat: int) -> Candidate:
        if flat == self.chosen:
            return self.choice
        if flat not in self._candidates:
            self._candidates[flat] = candidate(self.grid, flat, self.chosen)
        return self._candidates[flat]

    @cached_property
    def _candidates(self) -> dict[int, Candidate]:
        """Candidates by flat index: the table, the fronts and the sentences name many of them twice."""
        return {}


def plan(
    budget: Budget | None = None,
    space: Space | None = None,
    law: Any = None,
    *,
    eps: float | None = None,
    rule: Rule | str = Rule.PAPER,
    extrapolate: bool = False,
    allow_degenerate: bool = False,
    **limits: Any,
) -> Plan:
    """Choose the design with the lowest predicted loss among those that fit the budget and pass the rule.

    Give the limits directly, ``plan(flops="5e21", memory="3GB", bits="int4")``, or as a :class:`Budget`. ``law`` is a
    fit, a law, the name of a published law or a law file. Without ``space``, the paper's ladder is searched and
    extended as far as the budget asks; an axis of ``space`` with one value is held fixed, the others are optimised.
    The answer is withheld where it lies more than 10x beyond what the law was fitted on, unless ``extrapolate``.
    """
    budget, rule, law = _budget(budget, limits), rule_of(rule), law_of(law)
    if law.degenerate and not allow_degenerate:
        raise InputError(degenerate_law(law))
    if budget.unique_tokens is not None:
        law = with_repetition(law)
    found, pick = search(law, space or default_space(law), budget, eps, rule)
    grid = found if law.resamples is None else evaluate(law, found.space, budget, eps=found.eps, rule=rule)
    planned = Plan(grid, pick, _agreement(grid))
    assert planned.trust is not None
    if planned.trust.level == "beyond" and not extrapolate:
        raise InputError(withheld(planned.choice.label, law, planned.trust))
    return planned


def _budget(budget: Budget | None, limits: dict[str, Any]) -> Budget:
    known = [field.name for field in fields(Budget)]
    for name in limits:
        if name not in known:
            raise InputError(
                f"plan: {shown(name)} is not a limit{nearest(name, known)}; choose from {', '.join(known)}"
            )
    if budget is None:
        return Budget(**limits)
    if not isinstance(budget, Budget):
        raise InputError(f"plan: budget is {shown(budget)}; give a Budget, or limits by name: plan(flops='5e21')")
    return replace(budget, **limits)


def law_of(law: Any) -> ScalingLaw:
    """Return the law that ``law`` is, holds or names; the paper's for None."""
    return find_law() if law is None else find_law(law)


def default_space(law: ScalingLaw) -> Space:
    """Return the default search space: the paper's ladder, or bare sizes for a law of size and tokens."""
    if not law.outer.uses_experts and not law.mapping.loops:
        return size_space()
    return ladder_space(tuple(RUNGS), RUNG_EXPERTS, RUNG_RECURRENCES, free=("size", "experts", "recurrence"))


def search(law: ScalingLaw, space: Space, budget: Budget, eps: float | None, rule: Rule) -> tuple[Grid, int]:
    """Return the evaluated space and its best design, with further sizes while the best is the last of them."""
    while True:
        grid = evaluate(law, space, budget, eps=eps, rule=rule, resamples=False)
        pick = int(grid.optimum()[0, 0, 0])
        sides = ["low"] if pick < 0 else [edge["side"] for edge in edges(space, pick) if edge["axis"] == "size"]
        wider = space.extended(upward="high" in sides) if sides else None
        if wider is None:
            break
        space = wider
    if pick < 0:
        raise InputError(grid.nothing_fits())
    return grid, pick


def edges(space: Space, flat: int) -> list[dict[str, Any]]:
    """Return the axes on which a design is the last that the space holds; one expert or one pass is no edge."""
    s, k, p = (int(index) for index in np.unravel_index(flat, space.shape))
    sizes, found = space.active[:, 0], []
    along = {
        "size": (sizes, s, space.names[s]),
        "experts": (space.experts[s], k, plain(space.experts[s, k])),
        "recurrence": (space.recurrences.astype(float), p, int(space.recurrences[p])),
    }
    for axis, (values, index, value) in along.items():
        if len(values) == 1:
            continue
        ends = {"high": values.max(), "low": -np.inf if axis != "size" and values.min() == 1 else values.min()}
        for side, end in ends.items():
            if values[index] == end:
                set_by = "search" if axis in space.free or space.kind == "sizes" else "you"
                found.append({"axis": axis, "side": side, "value": value, "set_by": set_by})
    return found


def withheld(what: str, law: ScalingLaw, trust: Trust) -> str:
    """Say why a result is not given, and what would have to be measured first."""
    outside = [axis for axis, factor in trust.factors.items() if factor > 10]
    return (
        f"withheld: {what} lies more than 10x beyond what law {law.name} was fitted on ({'; '.join(trust.reasons)}). "
        f"Measure runs nearer to it first along {' and '.join(outside)} (`loopscale next` chooses them), "
        "or ask for the extrapolation (--extrapolate; extrapolate=True in Python)"
    )


def degenerate_law(law: ScalingLaw) -> str:
    """Say why a degenerate law is refused."""
    return (
        f"law {law.name} is degenerate: {'; '.join(law.degenerate)}. Fit it to more data or a simpler form, "
        "or use it all the same (--allow-degenerate; allow_degenerate=True in Python)"
    )


def _points(grid: Grid, flat: int | IntArray) -> Points:
    """Return candidates as the law sees them."""
    return grid.points.rows((0, *np.unravel_index(flat, grid.space.shape)))


def _agreement(grid: Grid) -> float | None:
    shared = float(near_agreement(grid, grid.optimum())[0, 0])
    return None if np.isnan(shared) else shared
