"""A fitted law and how it was fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from loopscale.arrays import FloatArray
from loopscale.fit.observations import Observations
from loopscale.laws import ScalingLaw


class Recipe(Enum):
    """How the optimum is looked for; the objective is the same."""

    DEFAULT = "default"
    """Exact gradients, bounds, many starts."""
    PAPER = "paper"
    """The paper's own two stages with finite differences."""


class Scheme(Enum):
    """What a resampled data set is made of."""

    RUNS = "runs"
    """As many runs as there are, with replacement: rows of one run stay together."""
    OBSERVATIONS = "observations"
    """As many rows as there are, with replacement."""
    PAPER = "paper"
    """90% of the rows without replacement, as the paper does: intervals about three times too narrow."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A law, the data it was fitted to, and what the search found."""

    law: ScalingLaw
    observations: Observations
    objective: float
    """Sum of Huber(delta) over the residuals of ln loss."""
    delta: float
    recipe: Recipe
    starts: int
    agreeing: int
    """Starts that ended within 0.1% of the best objective."""
    free: tuple[str, ...]
    """Coefficients that were varied."""
    at_bound: tuple[str, ...]
    degenerate: tuple[str, ...]
    """Why the coefficients mean nothing, if so; empty where the fit is sound."""
    fixed: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The user's own bounds; other coefficients keep those of their form."""
    scheme: Scheme | None = None
    """How ``law.resamples`` were drawn, once they are."""

    @property
    def residuals(self) -> FloatArray:
        """Predicted minus observed ln loss, row by row."""
        predicted = self.law(self.observations.points)
        return np.asarray(np.log(predicted) - np.log(self.observations.loss))

    def __str__(self) -> str:
        from loopscale.fit.summary import summary  # which reads fits

        return summary(self)
