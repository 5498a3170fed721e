"""What there is to spend, and by which rule a design is chosen."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

import numpy as np

from loopscale.architecture import Architecture
from loopscale.errors import InputError, nearest, shown
from loopscale.laws import ScalingLaw


class Rule(Enum):
    """How the choice is made among the designs that fit."""

    PAPER = "paper"
    """Lowest loss among those whose last pass and last expert step each gain at least eps."""
    LOSS = "loss"
    """Lowest loss, whatever the last step gains."""


@dataclass(frozen=True)
class Budget:
    """Limits on a design. None means no limit; compute or tokens must be given."""

    flops: float | None = None
    """Training compute, and serving compute where ``serve_tokens`` is set."""
    tokens: float | None = None
    """Training tokens, when they are given rather than what compute allows."""
    max_tokens: float | None = None
    """The most tokens there are to train on; compute beyond them stays unspent."""
    memory: float | None = None
    """Bytes for the weights, and for the KV cache where ``context`` is set."""
    bits: float = 16
    """Bits a weight is stored in."""
    context: int | None = None
    """Context length whose KV cache must fit beside the weights."""
    batch: int = 1
    kv_bits: float = 16
    kept_passes: int | None = None
    """Passes that keep keys and values of their own; None keeps all."""
    inference_flops: float | None = None
    """The most FLOPs a generated token may cost."""
    serve_tokens: float = 0.0
    """Tokens served over the model's life, paid from ``flops`` at 2 N_unroll each."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "serve_tokens" else None
            if value is not None and not (np.isfinite(value) and (value > 0 or value == least)):
                raise InputError(f"budget: {field.name} is {value}; it should be finite and above zero")
        if not 1 <= self.bits <= 64 or not 1 <= self.kv_bits <= 64:
            raise InputError(f"budget: bits is {self.bits} and kv_bits {self.kv_bits}; they should be from 1 to 64")
        if self.flops is None and self.tokens is None:
            raise InputError("budget: give training compute (flops) or training tokens")
        if self.tokens is not None and self.max_tokens is not None:
            raise InputError("budget: give tokens or max_tokens, not both")

    def to_dict(self) -> dict[str, Any]:
        """Return the limits that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def like(reference: Architecture, tokens: float, recurrence: int = 1) -> float:
    """Return the training compute of a reference model on so many tokens, 6 N_unroll D."""
    return float(reference.train_flops_per_token(recurrence) * tokens)


PEAK_FLOPS: dict[str, float] = {
    "a100": 312e12,
    "h100": 989e12,
    "h100-pcie": 756e12,
    "h200": 989e12,
    "b200": 2250e12,
    "l40s": 362e12,
    "rtx4090": 165e12,
    "mi250x": 383e12,
    "mi300x": 1307e12,
    "tpu-v4": 275e12,
    "tpu-v5e": 197e12,
    "tpu-v5p": 459e12,
    "tpu-v6e": 918e12,
    "trainium2": 667e12,
}
"""Dense bf16 FLOP/s that the makers state, without sparsity."""


def device_flops(hours: float, device: str, utilisation: float) -> float:
    """Return the training compute of so many device-hours at a utilisation between 0 and 1."""
    name = device.lower().replace("_", "-")
    if name not in PEAK_FLOPS:
        raise InputError(
            f"device {shown(device)} is not known{nearest(name, PEAK_FLOPS)}; choose from {', '.join(PEAK_FLOPS)}"
        )
    if not 0 < utilisation <= 1:
        raise InputError(f"utilisation is {utilisation}; it should be above 0 and at most 1, like 0.4")
    return hours * 3600 * PEAK_FLOPS[name] * utilisation


def tolerance(law: ScalingLaw, eps: float | None, rule: Rule) -> float:
    """Return eps: what is given, else the law's RMSE, below which a gain is not told from the fit's error."""
    if rule is Rule.LOSS:
        return 0.0
    if eps is not None:
        if not (np.isfinite(eps) and eps >= 0):
            raise InputError(f"eps is {eps}; it should be zero or more")
        return eps
    if law.rmse is None:
        raise InputError(f"law {law.name!r} states no RMSE to take as eps; give eps, or choose the rule 'loss'")
    return law.rmse
