"""The loss that a law predicts for one model, and the comparison of two designs on equal terms."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from loopscale.architecture import Architecture, continuous, rung
from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, shown
from loopscale.core.files import finite, read_json, write_json
from loopscale.core.quantities import count_of, format_count, plain
from loopscale.planning.devices import parse_reference
from loopscale.planning.grid import design_label, loss_interval
from loopscale.planning.plan import degenerate_law, law_of, withheld
from loopscale.planning.text import interval_text, trust_text, uncertainty_text
from loopscale.scaling import Points, ScalingLaw, Trust, costs


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
    uncertainty: str
    """What the interval rests on, or why there is none: "not published"."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "extrapolated": list(self.extrapolated), "trust": self.trust.to_dict()}

    def __repr__(self) -> str:
        span = f" ({interval_text(self.interval, self.uncertainty)})"
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
        return law.points(self.active, tokens, self.recurrence, self.experts, self.loop, self.total, self.embedding)


def _subject(
    model: Architecture | str | None, experts: float, N: float | str | None, recurrence: int | None
) -> _Subject:
    if (model is None) == (N is None):
        raise InputError("predict: give a model (an architecture or a rung like '1.0B') or a size N, one of them")
    if N is not None:
        size = count_of(N, "predict: N")
        if recurrence not in (None, 1) or experts != 1:
            raise InputError(
                "predict: a size N alone does not tell experts and loop layers; give a rung or an architecture"
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
    trust = law.trust(points).noting(uncertainty_text(law.uncertainty))
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
        uncertainty=law.uncertainty,
    )


CONDITIONS = ("training FLOPs", "total parameters", "KV memory", "all at once")


@dataclass(frozen=True)
class Matched:
    """Two designs on equal terms: one row for each condition. Differences are the first minus the second."""

    first: str
    second: str
    flops: float
    rows: tuple[dict[str, Any], ...]
    """condition, the active size and the loss of each, their difference, and its 90% interval."""
    compute: float | None
    """Compute of the second for each FLOP of the first at the same loss, each at its own best size: above 1, the first
    is ahead. None where the two are more than 20x apart."""
    compute_interval: tuple[float, float] | None
    trust: Trust

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "rows": list(self.rows), "trust": self.trust.to_dict()}


def matched(
    first: str | Architecture,
    second: str | Architecture,
    flops: float | str,
    law: Any = None,
    *,
    extrapolate: bool = False,
    allow_degenerate: bool = False,
) -> Matched:
    """Compare two designs of the ladder, written RUNG:EXPERTS:RECURRENCE, at equal training compute.

    Beyond that, at equal total parameters, at equal KV memory per token, and at both: the larger is then made smaller
    along the ladder, experts and recurrence held, until it has no more than the other. The compute multiplier is the
    training compute that the second needs for each FLOP of the first to reach the same loss, each at its best size.
    """
    law, budget = law_of(law), count_of(flops, "matched: flops")
    if law.degenerate and not allow_degenerate:
        raise InputError(degenerate_law(law))
    pair = [_design(text) for text in (first, second)]
    trust = _joint_trust(pair, [design.width for design in pair], budget, law)
    if trust.level == "beyond" and not extrapolate:
        raise InputError(withheld("one of the two designs", law, trust))
    rows = [_condition(name, pair, budget, law, extrapolate) for name in CONDITIONS]
    ratios = _compute_ratios(pair, budget, law)
    usable = ratios[1:][np.isfinite(ratios[1:])]
    interval = tuple(float(end) for end in np.percentile(usable, [5, 95])) if len(usable) else None
    compute = float(ratios[0]) if np.isfinite(ratios[0]) else None
    return Matched(pair[0].label, pair[1].label, budget, tuple(rows), compute, interval, trust)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Design:
    """A design whose size may be moved along the ladder."""

    label: str
    width: float
    experts: float
    recurrence: int

    def model(self, width: Any = None) -> Architecture:
        """Return the ladder's model of this design at a width, which need not be buildable."""
        return continuous(self.width if width is None else width, self.experts)

    def points(self, flops: Any, law: ScalingLaw, width: Any = None) -> Points:
        """Return the design as ``law`` sees it after ``flops`` of training."""
        model = self.model(width)
        tokens = costs.tokens_for(np.asarray(flops, float), np.asarray(model.unrolled(self.recurrence), float))
        return model.points(tokens, self.recurrence, law.counts)

    def total(self, width: float) -> float:
        """Return all stored weights, embeddings included."""
        model = self.model(width)
        return float(model.total + model.embedding)

    def kv(self, width: float) -> float:
        """Return the numbers that one token leaves in the KV cache."""
        return float(self.model(width).kv_bytes(self.recurrence, context=1, bits=8))


def _design(text: str | Architecture) -> _Design:
    model, passes = (text, text.recurrence) if isinstance(text, Architecture) else parse_reference(text)
    experts = plain(float(model.experts))
    return _Design(design_label(model.name, experts, passes), float(model.width), experts, passes)


def _joint_trust(pair: list[_Design], widths: list[float], flops: float, law: ScalingLaw) -> Trust:
    first, second = (law.trust(design.points(flops, law, width)) for design, width in zip(pair, widths, strict=True))
    return first.worse(second).noting(uncertainty_text(law.uncertainty))


def _condition(name: str, pair: list[_Design], flops: float, law: ScalingLaw, extrapolate: bool) -> dict[str, Any]:
    """Return the losses of both, resized so that neither has more of what is to be equal.

    Losses are None where a size lies more than 10x beyond what the law was fitted on, unless ``extrapolate``.
    """
    measures = {"training FLOPs": (), "total parameters": ("total",), "KV memory": ("kv",)}.get(name, ("total", "kv"))
    widths = [design.width for design in pair]
    for measure in measures:
        cap = min(getattr(design, measure)(design.width) for design in pair)
        widths = [min(width, _width_within(design, measure, cap)) for design, width in zip(pair, widths, strict=True)]
    losses = [_losses(design.points(flops, law, width), law) for design, width in zip(pair, widths, strict=True)]
    difference = losses[0] - losses[1]
    low, high = np.percentile(difference[1:], [5, 95]) if len(difference) > 1 else (None, None)
    values = {"first_loss": losses[0][0], "second_loss": losses[1][0], "difference": difference[0],
              "low": low, "high": high}  # fmt: skip
    level = _joint_trust(pair, widths, flops, law).level
    known = level != "beyond" or extrapolate
    return {
        "condition": name,
        "trust": level,
        "first_active": float(pair[0].model(widths[0]).active),
        "second_active": float(pair[1].model(widths[1]).active),
        **{key: float(value) if known and value is not None else None for key, value in values.items()},
    }


def _width_within(design: _Design, measure: str, cap: float) -> float:
    """Return the largest width, up to the design's own, whose measure is within ``cap``."""
    value = getattr(design, measure)
    if value(design.width) <= cap:
        return design.width
    low, high = 1.0, design.width
    for _ in range(80):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if value(middle) <= cap else (low, middle)
    return low


def _losses(points: Points, law: ScalingLaw) -> FloatArray:
    """Return the losses of the law and of its resamples at one point, or along a line of points: (Z, ...)."""
    own = np.asarray(law(points))[None]
    return own if law.resamples is None else np.concatenate([own, law.resampled(points)])


def _compute_ratios(pair: list[_Design], flops: float, law: ScalingLaw) -> FloatArray:
    """Return, for the law and each resample, the second's compute for the first's at the mean of their losses.

    Each design is at its own best size: at a fixed size the loss has a floor that the other may lie below.
    """
    grid, widths = flops * np.geomspace(0.05, 20, 121), np.geomspace(256, 16384, 97)[:, None]
    curves = [_losses(design.points(grid, law, widths), law).min(axis=1) for design in pair]
    middle = len(grid) // 2
    target = (curves[0][:, middle] + curves[1][:, middle]) / 2
    needed = [_compute_for(curve, grid, target) for curve in curves]
    return np.asarray(needed[1] / needed[0])


def _compute_for(loss_ZC: FloatArray, flops_C: FloatArray, target_Z: FloatArray) -> FloatArray:
    """Return the compute at which each falling curve reaches its target; NaN where it never does."""
    log_flops = np.log(flops_C)
    found = [
        np.interp(target, loss[::-1], log_flops[::-1], left=np.nan, right=np.nan)
        for loss, target in zip(loss_ZC, target_Z, strict=True)
    ]
    return np.asarray(np.exp(found))


REGISTERED = "registered-prediction"


def register(prediction: Prediction, path: str | Path) -> None:
    """Write a prediction with its date and a hash, before the run is trained; an existing file is not replaced."""
    if Path(path).exists():
        raise InputError(f"{path}: it exists already; a registered prediction is not replaced, name another file")
    content = {
        "kind": REGISTERED,
        "schema": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "prediction": prediction.to_dict(),
    }
    write_json(path, {**content, "sha256": _digest(content)})


def check(path: str | Path, loss: float) -> str:
    """Compare a registered prediction with the loss that came out; a file that was changed since is refused."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("kind") != REGISTERED:
        raise InputError(f"{path}: this is not a registered prediction; write one with `loopscale predict --register`")
    content = {name: value for name, value in data.items() if name != "sha256"}
    if data.get("sha256") != _digest(content):
        raise InputError(f"{path}: its content does not match its hash; the file was changed after it was written")
    stored = content["prediction"]
    interval = stored.get("interval")
    error = f"predicted {stored['loss']:.4f}, found {loss:.4f} ({loss / stored['loss'] - 1:+.2%})"
    if interval is None:
        return f"Registered {content['date']}: {error}; no interval was registered."
    inside = "inside" if interval["low"] <= loss <= interval["high"] else "outside"
    return f"Registered {content['date']}: {error}; {inside} the {interval_text(interval)}."


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(finite(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
