"""The search for a design: the evaluated grid, the choice, and what can be asked of both."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from loopscale.architecture import Space
from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_count, plain
from loopscale.core.tables import Table
from loopscale.planning import refusals
from loopscale.planning.budget import Budget, budget_of
from loopscale.planning.defaults import default_space
from loopscale.planning.design import Design, design_at
from loopscale.planning.grid import (
    Grid,
    Rule,
    evaluate,
    near_agreement,
)
from loopscale.planning.intervals import interval_kind, loss_band, loss_interval, uncertainty_text
from loopscale.planning.recipes import CAPACITY, CONTEXT, padding
from loopscale.planning.text import AXIS_TEXT
from loopscale.scaling import Points, ScalingLaw, Trust, find_law, with_repetition
from loopscale.scaling.published import repetition_text

COSTS = {"memory": "memory", "inference": "inference_flops"}
"""What a Pareto front may be drawn against, and the limit that is lifted for it."""

LOOP_SHARE_APART = 0.1
"""From this difference on, a design's loop is another part of the model than in the law's runs, and a plan says so."""


@dataclass(frozen=True)
class Vote:
    """How many resampled laws choose a design."""

    design: str
    share: float


@dataclass(frozen=True)
class Edge:
    """An axis on which the choice is the last value searched."""

    axis: str
    side: str
    """high or low"""
    value: int | float | str
    set_by: str
    """Who set the end: search or you."""


@dataclass(frozen=True)
class FrontRow:
    """A design that no other beats in both loss and cost."""

    design: str
    cost: float
    loss: float
    loss_low: float | None
    loss_high: float | None
    interval: str | None
    """What the band is: "predictive" for one new run, "law" for the curve."""
    trust: str


@dataclass(frozen=True, eq=False)
class Search:
    """An evaluated design space and its best design."""

    grid: Grid
    """Every candidate's loss and costs."""
    chosen: int
    """The choice, as a flat index over (S, K, P)."""
    original_law: ScalingLaw
    """The law as it was given; ``law`` has a term for repeated tokens too, where they are limited."""
    _designs: dict[int, Design] = field(default_factory=dict, repr=False)
    """Designs by flat index: tables, fronts and sentences name many of them twice."""

    @property
    def law(self) -> ScalingLaw:
        """The law that the search uses."""
        return self.grid.law

    @property
    def budget(self) -> Budget:
        """The limits."""
        return self.grid.budget

    @property
    def choice(self) -> Design:
        """The design to train."""
        return self.design(self.chosen)

    def design(self, flat: int) -> Design:
        """Return the design at a flat index over (S, K, P), with its verdict."""
        if flat not in self._designs:
            self._designs[flat] = design_at(self.grid, flat, self.chosen)
        return self._designs[flat]

    @cached_property
    def usable(self) -> BoolArray:
        """Where the rule is met and every limit too, by flat index over (S, K, P)."""
        return np.asarray(self.grid.admissible_ZFSKP[0, 0] & self.grid.within()[0]).ravel()

    @cached_property
    def ranked(self) -> IntArray:
        """Every candidate from the lowest loss up, the admissible before the others, as flat indices."""
        return np.lexsort((self.grid.loss_C, ~self.usable))

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Axes on which the choice is the last value searched, where a further one might be better."""
        return edges(self.grid.space, self.chosen)

    @cached_property
    def trust(self) -> Trust:
        """How far the prediction for the choice can be trusted."""
        reasons = [f"the best {AXIS_TEXT[edge.axis]} is at the edge of the search" for edge in self.edges]
        points, runs = self.points(self.chosen), None if self.law.frontier is None else self.law.frontier.models
        reasons.append(repetition_text(self.original_law, points))
        if runs is not None and runs.loop_share and points.loop is not None and self.choice.recurrence > 1:
            share = float(points.loop / points.active)
            if abs(share - runs.loop_share) > LOOP_SHARE_APART:
                reasons.append(
                    f"the loop has {share:.0%} of the active parameters, "
                    f"but {runs.loop_share:.0%} in the runs behind the law"
                )
        return self.law.trust(points).noting(*reasons, uncertainty_text(self.law.uncertainty))

    def nearer_text(self) -> str:
        """Name the best design that is at most 10x beyond the law's data, for an answer that is withheld."""
        flat = np.flatnonzero(self.usable & (self.grid.trust_FSKP[0].ravel() != "beyond"))
        if not len(flat):
            return ""
        best = self.design(int(flat[np.argmin(self.grid.loss_C[flat])]))
        return (
            f". The best design within 10x is {best.label}, loss {best.loss:.4f} on {format_count(best.tokens)} tokens"
        )

    @property
    def interval(self) -> dict[str, Any] | None:
        """The 90% interval of the choice's loss, with what it rests on; None where the law has no resamples."""
        return loss_interval(self.law, self.points(self.chosen))

    @property
    def frontier(self) -> dict[str, float] | None:
        """What the frontier of the law's runs forecasts for the choice, where that lies outside the law's interval."""
        interval, points = self.interval, self.points(self.chosen)
        if self.law.frontier is None or interval is None:
            return None
        new_run = self.law.forecast(points, interval["level"])
        if interval["low"] <= float(new_run.loss) <= interval["high"]:
            return None
        return {"loss": float(new_run.loss), "low": float(new_run.low), "high": float(new_run.high),
                "level": interval["level"]}  # fmt: skip

    @cached_property
    def picks(self) -> IntArray:
        """The design that the law (first) and each resampled law choose, as flat indices; -1 for none."""
        return self.grid.optimum()

    @property
    def agreement(self) -> float | None:
        """The share of resampled laws under which the choice is within eps of the best.

        None where there are none, and more than 10x beyond the data: laws may agree there and all be wrong.
        """
        if self.trust.level == "beyond":
            return None
        shared = float(near_agreement(self.grid, self.picks)[0, 0])
        return None if np.isnan(shared) else shared

    def votes(self) -> tuple[Vote, ...]:
        """Return each design that some resampled law chooses, with the share that does; none without agreement."""
        if self.trust.level == "beyond":
            return ()
        picks = self.picks[1:, 0, 0]
        designs, counts = np.unique(picks[picks >= 0], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return tuple(Vote(self.grid.label(int(designs[i])), float(counts[i] / len(picks))) for i in order)

    @property
    def lead(self) -> float | None:
        """How much loss the choice saves over the best other admissible design; None when there is no other."""
        others = [flat for flat in self.ranked[:2] if flat != self.chosen and self.usable[flat]]
        return float(self.grid.loss_C[others[0]] - self.choice.loss) if others else None

    def candidates(self, limit: int | None = None) -> tuple[Design, ...]:
        """Return the ranked candidates, each with its verdict."""
        return tuple(self.design(int(flat)) for flat in self.ranked[:limit])

    def rivals(self, count: int = 3) -> tuple[Design, ...]:
        """Return the closest alternatives: one step from the choice along each axis, then the best others."""
        shape, strides = self.grid.space.shape, (self._size_stride, 1, 1)
        at = np.array(np.unravel_index(self.chosen, shape))
        steps = [at + sign * strides[axis] * np.eye(3, dtype=int)[axis] for axis in (2, 1, 0) for sign in (-1, 1)]
        inside = [step for step in steps if np.all((step >= 0) & (step < shape))]
        flats = [int(np.ravel_multi_index(tuple(step), shape)) for step in inside]
        best = [int(flat) for flat in self.ranked[: count + len(flats) + 1] if self.usable[flat]]
        best = best if self._size_stride == 1 else []  # on a fine grid the best others are all but the same design
        runners = [flat for flat in best if flat != self.chosen and flat not in flats][:count]
        return tuple(self.design(flat) for flat in flats + runners)

    @property
    def _size_stride(self) -> int:
        """Steps along the sizes to a different design: one rung, or a factor of 1.5 where sizes are continuous."""
        active = self.grid.space.active[:, 0]
        if self.grid.space.kind not in ("continuous", "sizes") or len(active) < 2:
            return 1
        return max(1, round(float(np.log(1.5) / np.log(active[1] / active[0]))))

    @property
    def tied_sizes(self) -> tuple[float, float] | None:
        """The active sizes within eps of the best at its experts and recurrence, where sizes are continuous.

        Embeddings are counted, as in all sizes that people read.
        """
        if self._size_stride == 1:
            return None
        space, tie = self.grid.space, self.grid.eps or self.law.eps or 0.0
        _, k, p = np.unravel_index(self.chosen, space.shape)
        close = self.usable.reshape(space.shape)[:, k, p] & (
            self.grid.loss_ZFSKP[0, 0, :, k, p] - self.choice.loss <= tie
        )
        sizes = (space.active + space.embedding)[close, k]
        return float(sizes.min()), float(sizes.max())

    def front(self, cost: str) -> IntArray:
        """Return the flat indices of the designs that no other beats in both loss and ``cost``, by rising cost.

        The limit on that cost is lifted; every other limit and the rule hold.
        """
        if cost not in COSTS:
            raise InputError(f"pareto: cost is {cost!r}; it should be 'memory' or 'inference'")
        grid, prices = self.grid, self._prices(cost)
        usable = (grid.admissible_ZFSKP[0, 0] & grid.within(lifted=COSTS[cost])[0]).ravel()
        loss = np.where(usable, grid.loss_C, np.inf)
        order = np.lexsort((loss, prices))
        best = np.minimum.accumulate(np.concatenate([[np.inf], loss[order][:-1]]))
        return np.asarray(order[loss[order] < best])

    def _prices(self, cost: str) -> FloatArray:
        return (self.grid.memory_SKP if cost == "memory" else self.grid.inference_SKP).ravel()

    def front_rows(self, cost: str) -> tuple[FrontRow, ...]:
        """Return the front by rising ``cost``: design, cost, loss with its 90% band, and the level of trust in it.

        The band is that of one new run where the law knows it (``interval`` is then "predictive"), else that of the
        curve; None where the law has no resamples.
        """
        flat = self.front(cost)
        low: list[float | None] = [None] * len(flat)
        high = low
        if self.law.resamples is not None and len(flat):
            low, high = (end.tolist() for end in loss_band(self.law, self.points(flat)))
        columns = (
            [self.grid.label(int(index)) for index in flat],
            self._prices(cost)[flat].tolist(),
            self.grid.loss_C[flat].tolist(),
            low,
            high,
            [interval_kind(self.law)] * len(flat),
            self.grid.trust_FSKP[0].ravel()[flat].tolist(),
        )
        return tuple(FrontRow(*row) for row in zip(*columns, strict=True))

    def points(self, flat: int | IntArray) -> Points:
        """Return candidates as the law sees them."""
        return self.grid.points.rows((0, *np.unravel_index(flat, self.grid.space.shape)))

    @property
    def unspent_flops(self) -> float:
        """Compute of the budget that the choice leaves unspent."""
        if self.budget.flops is None:
            return 0.0
        left = self.budget.flops - self.spent_flops
        return left if left > 1e-6 * self.budget.flops else 0.0

    @property
    def spent_flops(self) -> float:
        """Compute that the choice takes to train and to serve."""
        return self.choice.train_flops + self.serving_flops

    @property
    def serving_flops(self) -> float:
        """Compute that the choice takes to serve."""
        return float(self.grid.serving_SKP.ravel()[self.chosen])

    def real_train_flops(self) -> dict[str, float] | None:
        """Return the training FLOPs of the choice with output head, routers, attention scores and expert padding.

        6 N_unroll D leaves these out; recomputed blocks depend on the devices and are not in it. ``supervised`` adds
        per-loop supervision: the coda and the head after every pass.
        None for a model that is known by its size alone.
        """
        s, k, _ = map(int, np.unravel_index(self.chosen, self.grid.space.shape))
        model, design = self.grid.space.model(s, k), self.choice
        if model is None or design.real_train_flops is None:
            return None
        supervised = model.real_train_flops_per_token(
            design.recurrence, context=CONTEXT, per_loop_supervision=True, padding=padding(model, CAPACITY)
        )
        return {
            "context": CONTEXT, "flops": design.real_train_flops, "supervised": float(supervised) * design.tokens,
        }  # fmt: skip

    def table(self, limit: int | None = None) -> Table:
        """Return the ranked candidates as a table, each with the level of trust in its loss."""
        return Table.from_records([row.to_dict() for row in self.candidates(limit)])

    def designs(self) -> Table:
        """Return every candidate that can be trained, with costs and loss, and whether it is usable or on a front."""
        grid, space = self.grid, self.grid.space
        flat = np.flatnonzero(np.isfinite(grid.loss_C))
        s, k, p = np.unravel_index(flat, space.shape)
        return Table.from_arrays(
            flat.shape,
            rung=np.array(space.names)[s],
            experts=space.experts[s, k],
            recurrence=space.recurrences[p],
            experts_active=grid.built_SK[0][s, k],
            experts_total=grid.built_SK[1][s, k],
            memory=grid.memory_SKP.ravel()[flat],
            inference=grid.inference_SKP.ravel()[flat],
            loss=grid.loss_C[flat],
            usable=self.usable[flat],
            chosen=flat == self.chosen,
            **{f"on_{cost}_front": np.isin(flat, self.front(cost)) for cost in COSTS},
        )


def search(
    budget: Budget | None = None,
    space: Space | None = None,
    law: Any = None,
    *,
    eps: float | None = None,
    rule: Rule | str = Rule.PAPER,
    extrapolate: bool = False,
    allow_degenerate: bool = False,
    **limits: Any,
) -> Search:
    """Search for the design that ``plan`` chooses, and keep the whole grid of candidates."""
    budget, law = budget_of(budget, limits), find_law(law)
    if space is None:
        space = default_space(law)
    refusals.check_budget(budget)
    refusals.check_variables(law, space.experts, space.recurrences)
    original_law, law = law, law if budget.unique_tokens is None else with_repetition(law)
    bare, pick = best_design(law, space, budget, eps, rule)
    grid = bare if law.resamples is None else evaluate(law, bare.space, budget, eps=bare.eps, rule=rule)
    result = Search(grid, pick, original_law)
    refusals.check_answer(
        f"the best design, {result.choice.label},", law, result.trust, extrapolate=extrapolate,
        allow_degenerate=allow_degenerate, searched=True, instead=result.nearer_text,
    )  # fmt: skip
    return result


def best_design(law: ScalingLaw, space: Space, budget: Budget, eps: float | None, rule: Rule | str) -> tuple[Grid, int]:
    """Return the evaluated space and its best design, with further sizes while the best is the last of them."""
    while True:
        grid = evaluate(law, space, budget, eps=eps, rule=rule, resamples=False)
        pick = int(grid.optimum()[0, 0, 0])
        sides = ["low"] if pick < 0 else [edge.side for edge in edges(space, pick) if edge.axis == "size"]
        wider = space.extended(upward="high" in sides) if sides else None
        if wider is None:
            break
        space = wider
    if pick < 0:
        raise grid.nothing_fits()
    return grid, pick


def edges(space: Space, flat: int) -> tuple[Edge, ...]:
    """Return the axes on which a design is the last that the space holds; one expert or one pass is no edge."""
    s, k, p = (int(index) for index in np.unravel_index(flat, space.shape))
    along: dict[str, tuple[FloatArray, int, float | str]] = {
        "size": (space.active[:, 0], s, space.names[s]),
        "experts": (space.experts[s], k, plain(space.experts[s, k])),
        "recurrence": (space.recurrences.astype(float), p, int(space.recurrences[p])),
    }
    last = []
    for axis, (values, index, value) in along.items():
        if len(values) == 1:
            continue
        ends = {"high": values.max(), "low": -np.inf if axis != "size" and values.min() == 1 else values.min()}
        for side, end in ends.items():
            if values[index] == end:
                set_by = "search" if axis in space.free or space.kind == "sizes" else "you"
                last.append(Edge(axis, side, value, set_by))
    return tuple(last)
