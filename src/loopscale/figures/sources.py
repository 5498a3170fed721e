"""What the gallery draws from: a law, a sweep, and the tables of other rooms."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loopscale.errors import InputError
from loopscale.figures.mappings import fit_mappings
from loopscale.fit import Observations, simulate_sweep
from loopscale.fit.datasets import SWEEP_EXPERTS, SWEEP_RECURRENCES
from loopscale.laws import ScalingLaw
from loopscale.laws.mappings import NoGain
from loopscale.tables import Table

RESAMPLES = 100


@dataclass(frozen=True, eq=False)
class Sources:
    """What there is to draw; a picture whose source is missing is left out."""

    law: ScalingLaw
    observations: Observations | None = None
    held_out: str | None = None
    """A slice like ``R=16``; without one, the largest R is held out where there are three or more."""
    results: Table | None = None
    psi: Table | None = None
    metrics: Table | None = None
    test_time: Table | None = None
    flops: float = 5e21
    origins: Mapping[str, str] | None = None
    """Where ``results`` and ``psi`` come from, to be said in the captions."""

    @cached_property
    def sweep(self) -> Observations:
        """The given sweep, or one simulated from the law on the paper's grid."""
        if self.observations is not None:
            return self.observations
        if isinstance(self.law.mapping, NoGain):
            raise InputError(f"law {self.law.name} knows no recurrence to simulate a sweep with; give --data")
        experts = SWEEP_EXPERTS if self.law.outer.uses_experts else (1,)
        noise = 0.0037 if self.law.rmse is None else self.law.rmse
        return simulate_sweep(self.law, experts=experts, recurrences=(*SWEEP_RECURRENCES, 16), noise=noise)

    @property
    def hidden(self) -> str | None:
        """The slice of the sweep that mappings are not fitted to."""
        return self.held_out or _largest(self.sweep)

    @cached_property
    def mappings(self) -> dict[str, ScalingLaw]:
        """The mappings fitted to the rows that are not held out, each with its resampled laws."""
        return {name: each.law for name, each in fit_mappings(self.sweep, self.hidden, RESAMPLES).items()}

    @property
    def truth(self) -> ScalingLaw | None:
        """What the sweep was simulated from; None for losses of real runs."""
        return self.law if self.observations is None else None

    @property
    def fitted(self) -> ScalingLaw:
        """The law that stands beside the sweep: the given one, or a fit to what was simulated from it."""
        if self.observations is not None:
            return self.law
        return self.mappings.get(self.law.mapping.name, list(self.mappings.values())[-1])

    @property
    def where(self) -> str:
        """Say where the sweep's losses come from."""
        return f"of {self.sweep.source}" if self.truth is None else f"simulated from {self.law.name}"

    def prepare(self) -> None:
        """Fit what several pictures share, once."""
        with suppress(InputError):  # said by the pictures that need it
            self.mappings  # noqa: B018

    def origin(self, name: str) -> str:
        """Say where a table comes from, as a caption ends."""
        return "" if self.origins is None or name not in self.origins else f" {self.origins[name]}"


def _largest(observations: Observations) -> str | None:
    R = np.unique(observations.points.recurrence)
    return f"R={R[-1]:g}" if len(R) >= 3 else None
