"""The 90% interval of a law's loss: which kind it is, what it rests on, and its sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopscale.core.arrays import FloatArray
from loopscale.scaling import Points, ScalingLaw


def interval_kind(law: ScalingLaw) -> str | None:
    """Return which interval the law can give: "predictive" for one new run, else "law", which is narrower, or None."""
    if law.spread is not None:
        return "predictive"
    return None if law.resamples is None else "law"


def loss_band(law: ScalingLaw, points: Points) -> tuple[FloatArray, FloatArray]:
    """Return the 90% interval of the loss at each point, of the kind that ``interval_kind`` says."""
    return law.interval(points) if law.spread is None else law.predictive_interval(points)


def loss_interval(law: ScalingLaw, points: Points) -> dict[str, Any] | None:
    """Return the 90% interval of the loss at one point with its kind and basis.

    None where the law has neither resamples nor a spread, and more than 10x beyond its data: how the law alone errs
    there is not known. Forecasts, which use the frontier of the runs too, go further.
    """
    kind = interval_kind(law)
    if kind is None or law.trust(points).level == "beyond":
        return None
    low, high = loss_band(law, points)
    return {"low": float(low), "high": float(high), "level": 0.9, "kind": kind, "basis": interval_basis(law)}


def interval_basis(law: ScalingLaw) -> str:
    """Say what the interval of a law's loss rests on."""
    basis = law.resampled_by or "resampled laws"
    if law.spread is None or law.fitted:
        return basis
    return f"its RMSE, the growth of error in public sweeps, and {basis}" if law.resamples is not None else "its RMSE"


def uncertainty_text(uncertainty: str) -> str:
    """Say what intervals rest on, as a reason of trust."""
    return f"uncertainty: {uncertainty}"


def no_interval_text(level: str, uncertainty: str) -> str:
    """Say why there is no interval, at a ``level`` of trust."""
    return "no interval so far beyond the data" if level == "beyond" else uncertainty_text(uncertainty)


def interval_text(interval: Mapping[str, Any] | None, uncertainty: str = "not published", level: str = "") -> str:
    """Write an interval with what it rests on, or why there is none at a ``level`` of trust."""
    if interval is None:
        return no_interval_text(level, uncertainty)
    span = f"{interval['low']:.4f} to {interval['high']:.4f}"
    if interval["kind"] == "predictive":
        return f"{interval['level']:.0%} predictive interval for one run {span}, from {interval['basis']}"
    return f"{interval['level']:.0%} confidence band of the curve {span}, from {interval['basis']}"


def front_band_text(kind: str | None, uncertainty: str) -> str:
    """Say what bands of the loss are: of one new run ("predictive"), or of the curve."""
    if kind is None:
        return f"Bands: none; {uncertainty_text(uncertainty)}"
    return f"Bands: 90%, {'for one new run' if kind == 'predictive' else 'of the curve, not of a run'}; {uncertainty}"
