"""A design: what a model is and costs, once, and how people name it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from loopscale.architecture import Architecture, at_width, rung
from loopscale.architecture.ladder import RUNGS, extended_rungs
from loopscale.core.errors import InputError
from loopscale.core.files import fields_as_json
from loopscale.core.quantities import format_count, format_size, plain
from loopscale.planning.grid import Grid, Rule, design_label

STEPS = ("pass", "experts")
"""What the rule refuses: a last pass, or a last step in experts, that gains less than eps."""
NO_GAIN = 5e-5
"""Nats below which a step changes nothing in the four decimals that people read."""


@dataclass(frozen=True)
class Design:
    """A model, its training and its costs.

    People read ``active_parameters`` and ``total_parameters``, which count embeddings as model cards do, and
    ``experts_active`` of ``experts_total`` experts, as the model is built. The law reads its own counts: ``active``,
    ``loop``, ``total``, ``unrolled`` and ``effective`` leave embeddings out, and ``experts`` is E.
    """

    rung: str
    """The size by name: a rung of the ladder, or the name of the model."""
    width: float | None
    """None, like ``layers``, for a model known by its size alone."""
    layers: float | None
    experts: float
    """E: experts stored for each active one, as the law counts."""
    recurrence: int
    """R: passes through the loop."""
    experts_active: float
    """Experts that a token uses in a layer; 1 for a dense model."""
    experts_total: float
    """Experts of a layer; 1 for a dense model."""
    active_parameters: float
    """Parameters that a token uses, embeddings included."""
    total_parameters: float
    """All parameters, embeddings included."""
    active: float
    """N_act: without embeddings, as the law counts."""
    loop: float
    """N_loop: the active parameters of the loop."""
    total: float
    """N_total: stored, without embeddings."""
    embedding: float
    m: float
    """N_act / N_total"""
    unrolled: float
    """N_unroll: the parameter count that sets compute."""
    effective: float
    """N_eff: the size of a model without looping that is as good."""
    tokens: float
    loss: float
    """Infinite where the budget leaves no token to train on; null in files."""
    loss_low: float | None
    """Where the law has resamples: the 5th percentile of their predictions."""
    loss_high: float | None
    train_flops: float
    """6 N_unroll D"""
    inference_flops: float
    """2 N_unroll, for one token."""
    weight_bytes: float
    kv_bytes: float
    bytes_per_token: float
    """Read from memory for one generated token."""
    tokens_per_second: float | None
    """The most that one sequence can be generated at; None where no bandwidth is given."""
    extrapolated: tuple[str, ...]
    """Axes on which the law is used outside the range it was fitted on."""
    trust: str
    """The level of trust in the loss: inside, near, far or beyond."""
    ruled_out_by: str | None
    """What excludes it: a field of the budget, or pass or experts for the rule; None where nothing does."""
    verdict: str
    """The same as a sentence; ``chosen`` for the choice."""
    real_train_flops: float | None = None
    """Training compute by the paper's recipe with output head, attention and expert padding, before recomputation; None
    for a model known by its size alone."""
    label: str = ""
    """The design in a few characters, like ``1.0B 2/16 R=2``."""
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        object.__setattr__(self, "extrapolated", tuple(self.extrapolated))
        label = design_label(self.rung, (self.experts_active, self.experts_total), self.recurrence)
        object.__setattr__(self, "label", label)

    @property
    def memory(self) -> float:
        """Bytes of weights and KV cache."""
        return self.weight_bytes + self.kv_bytes

    @property
    def effective_parameters(self) -> float:
        """The size of a model without looping that is as good, embeddings included."""
        return self.active_parameters + self.effective - self.active

    @property
    def misses_limit(self) -> bool:
        """Whether a limit of the budget rules it out before any law is asked."""
        return self.ruled_out_by is not None and self.ruled_out_by not in STEPS

    def architecture(self) -> Architecture:
        """Return the model, for a design that can be built by the ladder's rules."""
        k = int(self.experts_active) if self.experts > 1 else 2
        if self.rung in RUNGS or self.rung in extended_rungs():
            return rung(self.rung, self.experts, k)
        if self.width is None or self.layers is None or self.rung != f"d{self.width:g}x{self.layers:g}":
            raise InputError(
                f"{self.rung} is no size of the ladder, so it cannot be built from its size alone",
                remedy="plan over rungs or widths",
            )
        return at_width(int(self.width), int(self.layers), experts=self.experts, active_experts=k)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return fields_as_json(self) | {"loss": self.loss if math.isfinite(self.loss) else None}


def card_size(parameters: float) -> str:
    """Write a parameter count as model cards do: ``1.0B``, ``5.4B``; below 0.1 B in millions."""
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e8 else format_count(parameters)


def experts_text(active: float, total: float) -> str:
    """Write the experts of a model as it is built: "2 of 16 experts"."""
    return "dense" if total == 1 else f"{active:g} of {total:g} experts"


def sizes_text(model: Architecture, recurrence: int | None = None) -> str:
    """Write the sizes of a model: "1.0B active, 5.4B total, 2 of 16 experts, looped twice"."""
    parameters = float(model.parameters)
    active = card_size(parameters - float(model.total) + float(model.active))
    experts = experts_text(float(model.active_experts), float(model.routed_experts))
    passes = passes_text(model.recurrence if recurrence is None else recurrence)
    return f"{active} active, {card_size(parameters)} total, {experts}, {passes}"


def passes_text(recurrence: int) -> str:
    """Write how often a model is looped."""
    return {1: "not looped", 2: "looped twice"}.get(recurrence, f"looped {recurrence} times")


def design_text(design: Design) -> str:
    """Describe a design: "a 1.0B-active, 5.4B-total MoE (2 of 16 experts), looped twice"."""
    passes = passes_text(design.recurrence)
    if design.experts_total == 1:
        return f"a {card_size(design.total_parameters)} dense model, {passes}"
    active, total = card_size(design.active_parameters), card_size(design.total_parameters)
    return (
        f"a {active}-active, {total}-total MoE ({experts_text(design.experts_active, design.experts_total)}), {passes}"
    )


def law_counts_text(design: Design) -> str:
    """Give the counts that the law uses, labelled as such."""
    total = "" if design.total == design.active else f", N_total {format_size(design.total)}"
    worth = "" if design.recurrence == 1 else f", N_eff {format_size(design.effective)}"
    counted = " without embeddings" if design.embedding else ""
    mixture = "" if design.experts == 1 else f", E = {design.experts:g}"
    return f"As the law counts: N_act {format_size(design.active)}{total}{worth}{counted}{mixture}"


def design_at(grid: Grid, flat: int, chosen: int) -> Design:
    """Return the design at a flat index over (S, K, P), at the first compute budget, with its verdict."""
    at = tuple(int(index) for index in np.unravel_index(flat, grid.space.shape))
    (s, k, p), space, budget = at, grid.space, grid.budget
    low, high = _band(grid, at)
    ruled_out_by, verdict = _judged(grid, at, flat, chosen)
    active, total = space.active[s, k], space.total[s, k]
    parameters = float(space.parameters[s, k])
    experts_active, experts_total = grid.built_experts(s, k)
    read = float(grid.bytes_read_SKP[at])
    return Design(
        rung=space.names[s],
        width=_known(space.width[s, k]),
        layers=_known(space.layers[s, k]),
        experts=plain(space.experts[s, k]),
        recurrence=int(space.recurrences[p]),
        experts_active=experts_active,
        experts_total=experts_total,
        active_parameters=plain(parameters - (total - active)),
        total_parameters=plain(parameters),
        active=plain(active),
        loop=plain(space.loop[s, k]),
        total=plain(total),
        embedding=plain(space.embedding[s, k]),
        m=float(active / total),
        unrolled=plain(space.unrolled()[at]),
        effective=float(active + grid.gain_SKP[at] * space.loop[s, k]),
        tokens=float(grid.tokens_FSKP[(0, *at)]),
        loss=float(grid.loss_C[flat]),
        loss_low=low,
        loss_high=high,
        train_flops=float(grid.train_flops_FSKP[(0, *at)]),
        inference_flops=plain(grid.inference_SKP[at]),
        weight_bytes=float(grid.weight_bytes_SK[s, k]),
        kv_bytes=float(grid.kv_bytes_SKP[at]),
        bytes_per_token=read,
        tokens_per_second=None if budget.bandwidth is None else budget.bandwidth / read,
        extrapolated=tuple(axis for axis, flags in grid.extrapolated_FSKP.items() if flags[(0, *at)]),
        trust=str(grid.trust_FSKP[(0, *at)]),
        ruled_out_by=ruled_out_by,
        verdict=verdict,
        real_train_flops=float(grid.real_flops_FSKP[(0, *at)]) if space.models else None,
    )


def _known(value: float) -> float | None:
    return plain(value) if np.isfinite(value) else None


def _judged(grid: Grid, at: tuple[int, ...], flat: int, chosen: int) -> tuple[str | None, str]:
    """Return what rules a design out, the hardest limit first, and how to say it."""
    if flat == chosen:
        return None, "chosen"
    shape = grid.tokens_FSKP.shape
    for limit in grid.limits:
        if not np.broadcast_to(limit.met, shape)[(0, *at)]:
            need = float(np.broadcast_to(limit.need, shape)[(0, *at)])
            cap = float(np.broadcast_to(limit.cap, shape)[(0, *at)])
            return limit.field, limit.missed(need, cap)
    if grid.rule is Rule.PAPER:
        if not (gain := grid.pass_gain_ZFSKP[(0, 0, *at)]) >= grid.eps:
            return "pass", f"pass {int(grid.space.recurrences[at[2]])} {too_little(gain)}"
        if not (gain := grid.expert_gain_ZFSKP[(0, 0, *at)]) >= grid.eps:
            before, after = (f"{grid.built_experts(at[0], k)[1]:g}" for k in (at[1] - 1, at[1]))
            return "experts", f"{before} → {after} experts {too_little(gain)}"
    return None, f"loss {grid.loss_C[flat] - grid.loss_C[chosen]:.4f} higher"


def too_little(gain: float) -> str:
    """Say what a last pass or a last step in experts does that the rule refuses."""
    if abs(gain) < NO_GAIN:
        return "does not help"
    return f"gains only {gain:.4f}" if gain > 0 else f"costs {-gain:.4f} nats"


def _band(grid: Grid, at: tuple[int, ...]) -> tuple[float | None, float | None]:
    if len(grid.loss_ZFSKP) == 1:
        return None, None
    losses_Z = grid.loss_ZFSKP[1:, 0][:, at[0], at[1], at[2]]
    if not np.isfinite(losses_Z).all():  # serving leaves no compute to train it
        return None, None
    low, high = np.percentile(losses_Z, [5, 95])
    return float(low), float(high)
