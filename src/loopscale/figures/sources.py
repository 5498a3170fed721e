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

HELD_OUT = "R=16"
RESAMPLES = 100


@dataclass(frozen=True, eq=False)
class Sweep:
    """Observed losses, the mappings fitted to them, and the law that stands beside them."""

    observations: Observations
    held_out: str | None
    laws: Mapping[str, ScalingLaw]
    """By mapping, each fitted to the rows that were not held out."""
    law: ScalingLaw
    truth: ScalingLaw | None
    """What the losses were simulated from; None for losses of real runs."""

    @property
    def origin(self) -> str:
        """Say where the losses come from."""
        return f"simulated from {self.truth.name}" if self.truth is not None else self.observations.source


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
    def sweep(self) -> Sweep:
        """The given sweep, or one simulated from the law on the paper's grid."""
        if self.observations is not None:
            held_out = self.held_out or _largest(self.observations)
            laws = {name: each.law for name, each in fit_mappings(self.observations, held_out, RESAMPLES).items()}
            return Sweep(self.observations, held_out, laws, self.law, None)
        if isinstance(self.law.mapping, NoGain):
            raise InputError(f"law {self.law.name} knows no recurrence; give a sweep")
        experts = SWEEP_EXPERTS if self.law.outer.uses_experts else (1,)
        noise = 0.0037 if self.law.rmse is None else self.law.rmse
        data = simulate_sweep(self.law, experts=experts, recurrences=(*SWEEP_RECURRENCES, 16), noise=noise)
        fits = fit_mappings(data, HELD_OUT, RESAMPLES)
        like = fits.get(self.law.mapping.name) or list(fits.values())[-1]
        return Sweep(data, HELD_OUT, {name: each.law for name, each in fits.items()}, like.law, self.law)

    def prepare(self) -> None:
        """Fit what several pictures share, once."""
        with suppress(InputError):  # said by the pictures that need it
            self.sweep  # noqa: B018

    def origin(self, name: str) -> str:
        """Say where a table comes from, as a caption ends."""
        return "" if self.origins is None or name not in self.origins else f" {self.origins[name]}"


def _largest(observations: Observations) -> str | None:
    R = np.unique(observations.points.recurrence)
    return f"R={R[-1]:g}" if len(R) >= 3 else None
