"""Named, bounded coefficients: what a form is written in and what a fit varies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Coefficient:
    """One coefficient of a form: its name, the range a fit may search (counts in billions), and its meaning."""

    name: str
    lower: float
    upper: float
    meaning: str
