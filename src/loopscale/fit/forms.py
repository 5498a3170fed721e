"""Which form of law a sweep calls for."""

from __future__ import annotations

import numpy as np

from loopscale.fit.observations import Observations


def default_outer(observations: Observations) -> str:
    """Return the outer law that the data call for: with experts where any run has them."""
    return "joint-moe" if np.any(observations.points.experts > 1) else "chinchilla"


def default_mapping(observations: Observations) -> str:
    """Return the richest recurrence mapping that the data can tell."""
    points = observations.points
    if not np.any(points.recurrence > 1):
        return "none"
    sparse = points.total is not None and bool((points.m < 1).any())
    return "sparsity-conditional" if sparse else "bounded"


def default_form(data: Observations, outer: str | None, mapping: str | None) -> tuple[str, str]:
    """Return the form to fit: what is given, and what the data call for where nothing is."""
    return outer or default_outer(data), mapping or default_mapping(data)
