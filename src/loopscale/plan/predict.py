"""The loss that a law predicts for one model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loopscale.architecture import Architecture, rung
from loopscale.errors import InputError, shown
from loopscale.laws import Points, ScalingLaw, Trust, costs
from loopscale.plan.grid import loss_interval
from loopscale.plan.plan import degenerate_law, law_of, withheld
from loopscale.plan.text import interval_text, trust_text
from loopscale.quantities import count_of, format_count, plain


@dataclass(frozen=True, repr=False)
class Prediction:
    """A model's predicted loss with what it rests on. Counts leave embeddings out."""

    law: str
    model: str
    experts: float
    recurrence: int
    tokens: float
    loss: float
    loss_low: float | None
    loss_high: float | None
    active: float
    loop: float
    total: float
    embedding: float
    parameters: float
    m: float
    unrolled: float
    effective: float
    multiplier: float
    """rho_eff = N_eff / N_act"""
    largest_multiplier: float | None
    """rho_eff for R → ∞; None where the mapping is unbounded."""
    train_flops: float
    inference_flops: float
    extrapolated: tuple[str, ...]
    trust: Trust
    interval: dict[str, Any] | None
    """The 90% interval of the loss and what it rests on; None where the law has no resamples."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "extrapolated": list(self.extrapolated), "trust": self.trust.to_dict()}

    def __repr__(self) -> str:
        span = "" if self.interval is None else f" ({interval_text(self.interval)})"
        return (
            f"<Prediction {self.model} E={self.experts:g} R={self.recurrence} on {format_count(self.tokens)} tokens: "
            f"loss {self.loss:.4f}{span}, {trust_text(self.trust).lower()}>"
        )


def predict(
    model: Architecture | str | None = None,
    tokens: float | str | None = None,
    recurrence: int | None = None,
    law: Any = None,
    *,
    experts: float = 1,
    flops: float | str | None = None,
    N: float | str | None = None,
    D: float | str | None = None,
    extrapolate: bool = False,
    allow_degenerate: bool = False,
) -> Prediction:
    """Predict the loss of a model after ``tokens``, or after what ``flops`` of training allow.

    ``model`` is an architecture, or a rung by name with ``experts``: ``predict("1.0B", experts=8, tokens="500B")``.
    For a law that needs no architecture give sizes: ``predict(N=7e9, D=2e12, law="chinchilla-epoch-2024")``. ``law``
    is a fit, a law, a published name or a file. A prediction more than 10x beyond what the law was fitted on is
    withheld unless ``extrapolate``.
    """
    law = law_of(law)
    if law.degenerate and not allow_degenerate:
        raise InputError(degenerate_law(law))
    subject = _subject(model, experts, N, recurrence)
    count = _tokens(tokens, D, flops, subject.unrolled)
    prediction = _predict(subject, count, law)
    if prediction.trust.level == "beyond" and not extrapolate:
        raise InputError(withheld(f"{prediction.model} on {format_count(count)} tokens", law, prediction.trust))
    return prediction


@dataclass(frozen=True)
class _Subject:
    """What a law needs to know of a model. Counts leave embeddings out."""

    name: str
    experts: float
    recurrence: int
    active: float
    loop: float
    total: float
    embedding: float
    parameters: float

    @property
    def unrolled(self) -> float:
        """N_unroll, as an exact whole number where the counts are."""
        return costs.unrolled(self.active, self.loop, self.recurrence)  # type: ignore[no-any-return]

    def points(self, tokens: float, law: ScalingLaw) -> Points:
        """Return the model as ``law`` sees it."""
        extra = self.embedding if law.counts.value == "with-embeddings" else 0.0
        return Points(self.active + extra, tokens, self.recurrence, self.experts, self.loop, self.total + extra)


def _subject(
    model: Architecture | str | None, experts: float, N: float | str | None, recurrence: int | None
) -> _Subject:
    if (model is None) == (N is None):
        raise InputError("predict: give a model (an architecture or a rung like '1.0B') or a size N, one of them")
    if N is not None:
        size = count_of(N, "predict: N")
        if recurrence not in (None, 1) or experts != 1:
            raise InputError(
                "predict: a size N alone says nothing of experts and loops; give a rung or an architecture"
            )
        return _Subject(format_count(size), 1, 1, size, 0.0, size, 0.0, size)
    found = rung(model, experts) if isinstance(model, str) else model
    if not isinstance(found, Architecture):
        raise InputError(f"predict: model is {shown(model)}; give an architecture or a rung like '1.0B'")
    R = found.recurrence if recurrence is None else recurrence
    return _Subject(
        found.name, plain(found.experts), R, found.active, found.loop, found.total, found.embedding, found.parameters
    )


def _tokens(tokens: float | str | None, D: float | str | None, flops: float | str | None, unrolled: float) -> float:
    given = [value for value in (tokens, D, flops) if value is not None]
    if len(given) != 1:
        raise InputError("predict: give tokens (or D) or flops, one of them")
    if flops is not None:
        return float(costs.tokens_for(count_of(flops, "predict: flops"), unrolled))
    return count_of(given[0], "predict: tokens")


def _predict(subject: _Subject, tokens: float, law: ScalingLaw) -> Prediction:
    points = subject.points(tokens, law)
    most = float(law.largest_multiplier(points))
    interval = loss_interval(law, points)
    trust = law.trust(points)
    if law.resampled_by:
        trust = trust.noting(f"the uncertainty comes from {law.resampled_by}")
    return Prediction(
        law=law.name,
        model=subject.name,
        experts=subject.experts,
        recurrence=subject.recurrence,
        tokens=tokens,
        loss=float(law(points)),
        loss_low=None if interval is None else interval["low"],
        loss_high=None if interval is None else interval["high"],
        active=subject.active,
        loop=subject.loop,
        total=subject.total,
        embedding=subject.embedding,
        parameters=subject.parameters,
        m=float(subject.active / subject.total),
        unrolled=subject.unrolled,
        effective=float(law.effective_parameters(points)) - float(points.active) + subject.active,
        multiplier=float(law.multiplier(points)),
        largest_multiplier=most if np.isfinite(most) else None,
        train_flops=float(costs.train_flops(subject.unrolled, tokens)),
        inference_flops=float(costs.inference_flops(subject.unrolled)),
        extrapolated=tuple(axis for axis, flag in law.extrapolated(points).items() if np.any(flag)),
        trust=trust,
        interval=interval,
    )
