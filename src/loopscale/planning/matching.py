"""Two designs compared on equal terms: compute, then also parameters and KV memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopscale.architecture import Architecture, continuous
from loopscale.core.arrays import FloatArray
from loopscale.core.files import fields_as_json
from loopscale.core.numerics import geometric_bisection
from loopscale.core.quantities import bits_of, bytes_of, context_of, count_of, format_bytes, plain
from loopscale.planning import refusals
from loopscale.planning.compute import parse_reference
from loopscale.planning.grid import all_losses, design_label
from loopscale.planning.intervals import uncertainty_text
from loopscale.scaling import Points, ScalingLaw, Trust, costs, find_law

CURVE, RUNS = "the curve", "one run of each"
"""What an interval is of."""


@dataclass(frozen=True)
class LadderDesign:
    """A model of the ladder with its passes, whose size may be moved along the ladder between the rungs."""

    model: Architecture
    recurrence: int

    @property
    def label(self) -> str:
        """The design in a few characters."""
        experts = plain(self.model.active_experts), plain(self.model.routed_experts)
        return design_label(self.model.name, experts, self.recurrence)

    def at(self, width: Any) -> Architecture:
        """Return the model at another width, which need not be buildable."""
        return continuous(width, self.model.experts)

    def points(self, flops: Any, law: ScalingLaw, width: Any) -> Points:
        """Return the design at a width as ``law`` sees it after ``flops`` of training."""
        model = self.at(width)
        tokens = costs.tokens_for(np.asarray(flops, float), np.asarray(model.unrolled(self.recurrence), float))
        return model.points(tokens, self.recurrence, law.counts)

    def width_within(self, measure: Measure, cap: float) -> float:
        """Return the largest width, up to the model's own, whose measure is within ``cap``."""

        def fits(width: FloatArray) -> bool:
            return measure(self.at(float(width)), self.recurrence) <= cap

        own = np.asarray(self.model.width, float)
        return float(own) if fits(own) else float(geometric_bisection(fits, 1.0, own, rounds=80))


Measure = Callable[[Architecture, int], float]
"""What a model with so many passes takes of something that is to be equal."""


def _total(model: Architecture, recurrence: int) -> float:
    """Return all stored weights, embeddings included."""
    return float(model.total + model.embedding)


def _kv(model: Architecture, recurrence: int) -> float:
    """Return the numbers that one token leaves in the KV cache."""
    return float(model.kv_bytes(recurrence, context=1, bits=8))


CONDITIONS: dict[str, tuple[Measure, ...]] = {
    "training FLOPs": (),
    "total parameters": (_total,),
    "KV memory": (_kv,),
    "all at once": (_total, _kv),
}
"""What is equal besides training compute."""


@dataclass(frozen=True)
class Condition:
    """What is equal, and how much of it each design may have."""

    name: str
    caps: list[tuple[Measure, float]]


@dataclass(frozen=True)
class Matched:
    """Two designs on equal terms: one row for each condition. Differences are the first minus the second."""

    first: str
    second: str
    flops: float
    rows: tuple[dict[str, Any], ...]
    """condition, the active parameters (with embeddings) and loss of each, their difference, its 90% interval, and
    what that is of: one run of each where a design lies outside the law's data, else the curve."""
    compute: float | None
    """Compute of the second for each FLOP of the first at the same loss, each at its own best size: above 1, the first
    is ahead. None where the two are more than 20x apart."""
    compute_interval: tuple[float, float] | None
    trust: Trust

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return fields_as_json(self)


def matched(
    first: str | Architecture,
    second: str | Architecture,
    flops: float | str,
    law: Any = None,
    *,
    memory: float | str | None = None,
    bits: float | str | None = None,
    context: int | str | None = None,
    extrapolate: bool = False,
    allow_degenerate: bool = False,
) -> Matched:
    """Compare two designs of the ladder, written RUNG:EXPERTS:RECURRENCE, at equal training compute.

    Beyond that, at equal total parameters, at equal KV memory per token, and at both: the larger is then made smaller
    along the ladder, experts and recurrence held, until it has no more than the other. The compute multiplier is the
    training compute that the second needs for each FLOP of the first to reach the same loss, each at its best size.
    With ``memory``, ``bits`` or ``context`` they are also compared in equal memory, weights and KV cache together: in
    ``memory``, or in that of the smaller.
    """
    law, budget = find_law(law), count_of(flops, "flops")
    pair = [
        LadderDesign(design, design.recurrence)
        if isinstance(design, Architecture)
        else LadderDesign(*parse_reference(design))
        for design in (first, second)
    ]
    refusals.check_variables(
        law, [float(design.model.experts) for design in pair], [design.recurrence for design in pair]
    )
    for design in pair:
        refusals.check_tokens(float(costs.tokens_for(budget, float(design.model.unrolled(design.recurrence)))))
    trust = _joint_trust([design.points(budget, law, float(design.model.width)) for design in pair], law)
    refusals.check_answer(
        "one of the two designs", law, trust, extrapolate=extrapolate, allow_degenerate=allow_degenerate
    )
    conditions = [
        Condition(name, [(measure, _least(measure, pair)) for measure in measures])
        for name, measures in CONDITIONS.items()
    ]
    if (memory, bits, context) != (None, None, None):
        conditions.append(_in_memory(pair, memory, bits, context))
    rows = tuple(_row(condition, pair, budget, law, extrapolate) for condition in conditions)
    compute, interval = _compute(pair, budget, law, trust.level)
    return Matched(pair[0].label, pair[1].label, budget, rows, compute, interval, trust)


def _least(measure: Measure, pair: list[LadderDesign]) -> float:
    return min(measure(design.model, design.recurrence) for design in pair)


def _in_memory(
    pair: list[LadderDesign], memory: float | str | None, bits: float | str | None, context: int | str | None
) -> Condition:
    """Return the condition that weights and KV cache take no more than a memory."""
    width = 16.0 if bits is None else bits_of(bits, "bits")
    positions = 0 if context is None else context_of(context, "context")

    def bytes_taken(model: Architecture, recurrence: int) -> float:
        cache = float(model.kv_bytes(recurrence, context=positions)) if positions else 0.0
        return _total(model, recurrence) * width / 8 + cache

    cap = _least(bytes_taken, pair) if memory is None else bytes_of(memory, "memory")
    return Condition(f"{format_bytes(cap)} memory", [(bytes_taken, cap)])


def _joint_trust(points: list[Points], law: ScalingLaw) -> Trust:
    first, second = map(law.trust, points)
    return first.worse(second).noting(uncertainty_text(law.uncertainty))


def _row(
    condition: Condition, pair: list[LadderDesign], flops: float, law: ScalingLaw, extrapolate: bool
) -> dict[str, Any]:
    """Return the losses of both, resized so that neither has more of what is to be equal.

    Losses are None where a size lies more than 10x beyond what the law was fitted on, unless ``extrapolate``.
    """
    widths = [float(design.model.width) for design in pair]
    for measure, cap in condition.caps:
        widths = [min(width, design.width_within(measure, cap)) for design, width in zip(pair, widths, strict=True)]
    first, second = (design.at(width) for design, width in zip(pair, widths, strict=True))
    points = [design.points(flops, law, width) for design, width in zip(pair, widths, strict=True)]
    losses = [all_losses(law, point) for point in points]
    difference, level = losses[0] - losses[1], _joint_trust(points, law).level
    low = high = interval = None
    if predictive(law, level):
        (low, high), interval = law.difference_interval(points[0], points[1]), RUNS
    elif len(difference) > 1 and level != "beyond":
        (low, high), interval = np.percentile(difference[1:], [5, 95]), CURVE
    values = {"first_loss": losses[0][0], "second_loss": losses[1][0], "difference": difference[0],
              "low": low, "high": high}  # fmt: skip
    stated = level != "beyond" or extrapolate
    return {
        "condition": condition.name,
        "trust": level,
        "first_active": float(first.active + first.embedding),
        "second_active": float(second.active + second.embedding),
        **{key: float(value) if stated and value is not None else None for key, value in values.items()},
        "interval": interval,
    }


def _compute(
    pair: list[LadderDesign], flops: float, law: ScalingLaw, level: str
) -> tuple[float | None, tuple[float, float] | None]:
    """Return the second's compute for the first's at the mean of their losses, and its 90% interval.

    Each design is at its own best size: at a fixed size the loss has a floor that the other may lie below.
    """
    grid, widths = flops * np.geomspace(0.05, 20, 121), np.geomspace(256, 16384, 97)[:, None]
    curves = [all_losses(law, design.points(grid, law, widths)).min(axis=1) for design in pair]
    middle = len(grid) // 2
    target = (curves[0][:, middle] + curves[1][:, middle]) / 2
    needed = [_compute_for(curve, grid, target) for curve in curves]
    logs = np.log(needed[1] / needed[0])
    drawn = logs[1:][np.isfinite(logs[1:])]
    if not np.isfinite(logs[0]):
        return None, None
    ratio = float(np.exp(logs[0]))
    if not len(drawn) or level == "beyond":
        return ratio, None
    ends = np.percentile(drawn, [5, 95]).tolist()
    if predictive(law, level):  # the error of the difference, over the slope of the loss along ln compute
        points = [design.points(flops, law, float(design.model.width)) for design in pair]
        low, high = law.difference_interval(points[0], points[1])
        step = np.log(grid[middle + 1] / grid[middle - 1])
        slope = np.mean([(curve[0, middle - 1] - curve[0, middle + 1]) / step for curve in curves])
        half = max(float(high - low) / 2 / slope, (ends[1] - ends[0]) / 2)
        ends = [logs[0] - half, logs[0] + half]
    return ratio, (float(np.exp(ends[0])), float(np.exp(ends[1])))


def predictive(law: ScalingLaw, level: str) -> bool:
    """Tell whether intervals are for one run of each design: outside the data the form of the law errs too."""
    return law.spread is not None and level in ("near", "far")


def _compute_for(loss_ZC: FloatArray, flops_C: FloatArray, target_Z: FloatArray) -> FloatArray:
    """Return the compute at which each falling curve reaches its target; NaN where it never does."""
    log_flops = np.log(flops_C)
    reached = [
        np.interp(target, loss[::-1], log_flops[::-1], left=np.nan, right=np.nan)
        for loss, target in zip(loss_ZC, target_Z, strict=True)
    ]
    return np.asarray(np.exp(reached))
