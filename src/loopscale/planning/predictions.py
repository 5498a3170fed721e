"""The loss that a law predicts for one model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loopscale.architecture import Architecture, Space, architecture_space, rung
from loopscale.architecture.space import size_space
from loopscale.core.errors import InputError, shown
from loopscale.core.files import as_json
from loopscale.core.quantities import count_of, format_count, whole_count_of
from loopscale.planning import refusals
from loopscale.planning.budget import Budget
from loopscale.planning.cluster import Cluster, ClusterCost
from loopscale.planning.design import Design, design_at
from loopscale.planning.grid import Rule, evaluate, recipe_flops_per_token
from loopscale.planning.intervals import interval_text, loss_interval, uncertainty_text
from loopscale.scaling import Trust, costs, find_law, with_repetition
from loopscale.scaling.published import repetition_text
from loopscale.scaling.variables import fixed_experts

_OF_A_SEARCH = ("ruled_out_by", "verdict")
"""Facts that a design has among others only."""


@dataclass(frozen=True, repr=False)
class Prediction:
    """A model's predicted loss with what it rests on."""

    law: str
    design: Design
    trust: Trust
    interval: dict[str, Any] | None
    """The 90% interval of the loss and what it rests on; None where the law has no resamples."""
    uncertainty: str
    """What the interval rests on, or why there is none: "not published"."""
    multiplier: float
    """rho_eff = N_eff / N_act"""
    largest_multiplier: float | None
    """rho_eff for R → ∞; None where the mapping is unbounded."""
    devices: ClusterCost | None = None
    """What training takes on the devices that were named; None where none were."""

    @property
    def loss(self) -> float:
        """The predicted loss."""
        return self.design.loss

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: the design's own, and how far they can be trusted."""
        ends = (None, None) if self.interval is None else (self.interval["low"], self.interval["high"])
        facts = {name: value for name, value in self.design.to_dict().items() if name not in _OF_A_SEARCH}
        return {
            "law": self.law,
            **facts,
            "loss_low": ends[0],
            "loss_high": ends[1],
            "multiplier": self.multiplier,
            "largest_multiplier": self.largest_multiplier,
            "interval": self.interval,
            "uncertainty": self.uncertainty,
            "trust": self.trust.to_dict(),
            "devices": as_json(self.devices),
        }

    def __repr__(self) -> str:
        interval = interval_text(self.interval, self.uncertainty, self.trust.level)
        return (
            f"<Prediction {self.design.label} on {format_count(self.design.tokens)} tokens: "
            f"loss {self.loss:.4f} ({interval}), trust {self.trust.level}>"
        )


def predict(
    model: Architecture | str | None = None,
    tokens: float | str | None = None,
    recurrence: int | None = None,
    law: Any = None,
    *,
    experts: float = 1,
    flops: float | str | None = None,
    real_flops: float | str | None = None,
    cluster: Cluster | None = None,
    price: float | None = None,
    N: float | str | None = None,
    D: float | str | None = None,
    loop_params: float | str | None = None,
    total_params: float | str | None = None,
    unique_tokens: float | str | None = None,
    extrapolate: bool = False,
    allow_degenerate: bool = False,
) -> Prediction:
    """Predict the loss of a model after ``tokens``, or after what ``flops`` or ``real_flops`` of training allow.

    ``model`` is an architecture, or a rung by name with ``experts``: ``predict("1.0B", experts=8, tokens="500B")``.
    A model of yours is known by its counts, as the law counts them: ``predict(N=7e9, D=2e12, law="law.json")``, with
    ``loop_params`` (N_loop) where it is looped and ``total_params`` (N_total) where it has experts. ``unique_tokens``
    (U) are the different tokens among D, where they are repeated; a law without a term for that takes the published
    discount of dense models.

    ``law`` is a fit, a law, a published name or a file. ``real_flops`` counts output head, attention and expert padding
    too; ``cluster`` asks what the training takes on devices, at a ``price`` in dollars a device-hour. A prediction more
    than 10x beyond what the law was fitted on is withheld unless ``extrapolate``.
    """
    law = find_law(law)
    if N is not None and recurrence is not None:  # before sizes are asked for that a law without passes does not need
        refusals.check_variables(law, fixed_experts(law) or 1, recurrence)
    space = _one_model(model, experts, N, recurrence, loop_params, total_params)
    count = _tokens(tokens, D, flops, real_flops, space)
    unique = None if unique_tokens is None else whole_count_of(unique_tokens, "unique_tokens")
    original_law, law = law, law if unique is None else with_repetition(law)
    grid = evaluate(law, space, Budget(tokens=count, unique_tokens=unique), rule=Rule.LOSS)
    design, points = design_at(grid, 0, 0), grid.points.rows((0, 0, 0, 0))
    refusals.check_variables(law, points.experts, points.recurrence)
    trust = law.trust(points).noting(repetition_text(original_law, points), uncertainty_text(law.uncertainty))
    what = f"{design.label} on {format_count(count)} tokens"
    refusals.check_answer(what, law, trust, extrapolate=extrapolate, allow_degenerate=allow_degenerate)
    most = float(law.largest_multiplier(points))
    interval = loss_interval(law, points)
    if law.frontier is not None:  # the law, moved to the frontier of its runs, as `loopscale forecast` has it
        new_run = law.forecast(points)
        design = replace(design, loss=float(new_run.loss))
        interval = {"low": float(new_run.low), "high": float(new_run.high), "level": new_run.level,
                    "kind": "predictive", "basis": "the law and the frontier of its runs"}  # fmt: skip
    return Prediction(
        law=law.name,
        design=design,
        trust=trust,
        interval=interval,
        uncertainty=law.uncertainty,
        multiplier=float(law.multiplier(points)),
        largest_multiplier=most if np.isfinite(most) else None,
        devices=None if cluster is None else cluster.cost(design, price),
    )


def _one_model(
    model: Architecture | str | None,
    experts: float,
    N: float | str | None,
    recurrence: int | None,
    loop: float | str | None,
    total: float | str | None,
) -> Space:
    """Return the space that holds one model at one recurrence."""
    if (model is None) == (N is None):
        raise InputError("predict: give a model (an architecture or a rung like '1.0B') or a size N, one of them")
    if N is not None:
        return _counted_model(float(whole_count_of(N, "N")), experts, recurrence or 1, loop, total)
    if loop is not None or total is not None:
        raise InputError("`loop_params` and `total_params` describe a model given by its size; give `params` with them")
    architecture = rung(model, experts) if isinstance(model, str) else model
    if not isinstance(architecture, Architecture):
        raise InputError(f"predict: model is {shown(model)}; give an architecture or a rung like '1.0B'")
    return architecture_space([architecture], [architecture.recurrence if recurrence is None else recurrence])


def _counted_model(
    N: float, experts: float, recurrence: int, loop: float | str | None, total: float | str | None
) -> Space:
    """Return the space of one model that is known by its counts."""
    counts = {"loop_params": (loop, recurrence > 1, "is looped"), "total_params": (total, experts > 1, "has experts")}
    for name, (count, needed, why) in counts.items():
        if needed and count is None:
            raise InputError(f"`{name}` is missing: this model {why}", remedy=f"add `{name}`, or give a rung")
    looped = 0.0 if loop is None else float(whole_count_of(loop, "loop_params"))
    stored = N if total is None else float(whole_count_of(total, "total_params"))
    if looped > N:
        raise InputError("`loop_params` is larger than `params`, of which it is a part")
    if stored < N:
        raise InputError("`total_params` is smaller than `params`, which is a part of it")
    space = size_space([N])
    return replace(
        space, recurrences=np.array([recurrence]), loop=np.full_like(space.active, looped),
        total=np.full_like(space.active, stored), parameters=np.full_like(space.active, stored),
        experts=np.full_like(space.active, experts),
    )  # fmt: skip


def _tokens(
    tokens: float | str | None, D: float | str | None, flops: float | str | None, real: float | str | None, space: Space
) -> float:
    counts = [value for value in (tokens, D, flops, real) if value is not None]
    if len(counts) != 1:
        raise InputError("predict: give tokens (or D), flops or real_flops, one of them")
    if flops is not None:
        return refusals.check_tokens(float(costs.tokens_for(count_of(flops, "flops"), float(space.unrolled().item()))))
    if real is not None:
        per_token = float(recipe_flops_per_token(space, space.recurrences).item())
        return refusals.check_tokens(count_of(real, "real_flops") / per_token)
    return whole_count_of(counts[0], "tokens")
