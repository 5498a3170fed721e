"""The loss that a law predicts for one model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loopscale.architecture import Architecture
from loopscale.laws import ScalingLaw, published
from loopscale.quantities import plain


@dataclass(frozen=True)
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "extrapolated": list(self.extrapolated)}


def predict(
    model: Architecture, tokens: float, recurrence: int | None = None, law: ScalingLaw | None = None
) -> Prediction:
    """Predict the loss of ``model`` after ``tokens`` at ``recurrence``, its own when none is given."""
    law = law or published()
    R = model.recurrence if recurrence is None else recurrence
    points = model.points(tokens, R, law.counts)
    most = float(law.largest_multiplier(points))
    low, high = (None, None)
    if law.resamples is not None:
        low, high = (float(each) for each in np.percentile(law.resampled(points), [5, 95]))
    effective = float(law.effective_parameters(points))
    return Prediction(
        law=law.name,
        model=model.name,
        experts=plain(model.experts),
        recurrence=R,
        tokens=tokens,
        loss=float(law(points)),
        loss_low=low,
        loss_high=high,
        active=model.active,
        loop=model.loop,
        total=model.total,
        embedding=model.embedding,
        parameters=model.parameters,
        m=float(model.m),
        unrolled=model.unrolled(R),
        effective=effective - float(points.active) + model.active,
        multiplier=float(law.multiplier(points)),
        largest_multiplier=most if np.isfinite(most) else None,
        train_flops=float(model.train_flops_per_token(R) * tokens),
        inference_flops=float(model.inference_flops_per_token(R)),
        extrapolated=tuple(axis for axis, flag in law.extrapolated(points).items() if np.any(flag)),
    )
