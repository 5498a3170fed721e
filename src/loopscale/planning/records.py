"""The rows that a plan is made of, as plain values."""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True)
class Sensitivity:
    """What a looser limit would buy."""

    limit: str
    """The field of the budget."""
    factor: float
    """By how much it is loosened."""
    used: float
    """How much of it the choice takes."""
    cap: float
    design: str
    """The best design under the looser limit."""
    loss: float
    saved: float
    trust: str

    @property
    def share(self) -> float:
        """The share of the limit that the choice takes; for a lower limit, how close the choice is to it."""
        return self.used / self.cap if self.factor > 1 else self.cap / self.used

    @property
    def binds(self) -> bool:
        """Whether the limit holds the loss up."""
        return self.saved > 1e-6


@dataclass(frozen=True)
class NextBest:
    """The better design that needs the least more than the limits allow."""

    design: str
    loss: float
    needs: str
    """What it needs, as a sentence."""
    factor: float
    """How many times the limit that it misses by most."""
    trust: str
    fits_with: str | None = None
    """What would make it fit, where it misses the memory by little: a shorter context, or fewer bits."""


@dataclass(frozen=True)
class BitsChoice:
    """The best design if weights take the bits of a format that people use."""

    format: str
    bits: float
    design: str | None
    """None where nothing fits."""
    loss: float | None


@dataclass(frozen=True)
class CachePolicy:
    """The best design for one way to keep keys and values."""

    policy: str
    design: str
    loss: float
    kv_bytes: float
