"""What figures and tables are drawn from: a law, a sweep and results."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loopscale.core.errors import InputError
from loopscale.core.tables import Table
from loopscale.figures.capacity import dense_rows, fit_mappings
from loopscale.fitting import Observations, simulate_sweep
from loopscale.fitting.data.public import SWEEP_EXPERTS, SWEEP_RECURRENCES
from loopscale.scaling import ScalingLaw

RESAMPLES = 100


@dataclass(frozen=True, eq=False)
class Sources:
    """What figures are drawn from; a figure whose source is missing is left out."""

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
    """Where ``results`` and ``psi`` come from, for the captions."""

    @cached_property
    def sweep(self) -> Observations:
        """The given sweep, or one simulated from the law on the paper's grid."""
        if self.observations is not None:
            return self.observations
        if not self.law.mapping.loops:
            raise InputError(f"law {self.law.name} has no recurrence term to simulate a sweep with; give --data")
        experts = SWEEP_EXPERTS if self.law.outer.uses_experts else (1,)
        noise = 0.0037 if self.law.rmse is None else self.law.rmse
        return simulate_sweep(self.law, experts=experts, recurrences=(*SWEEP_RECURRENCES, 16), noise=noise)

    @property
    def hidden(self) -> str | None:
        """The slice of the sweep that mappings are not fitted to."""
        passes = np.unique(self.sweep.points.recurrence)
        return self.held_out or (f"R={passes[-1]:g}" if len(passes) >= 3 else None)

    @cached_property
    def mappings(self) -> dict[str, ScalingLaw]:
        """The mappings fitted to the rows that are not held out, each with its resampled laws."""
        return {name: fitted.law for name, fitted in fit_mappings(self.sweep, self.hidden, RESAMPLES).items()}

    @cached_property
    def dense_mappings(self) -> dict[str, ScalingLaw]:
        """The mappings fitted to the dense rows (E = 1) alone, as the paper's loop law of dense models is."""
        dense = dense_rows(self.sweep)
        return {name: fitted.law for name, fitted in fit_mappings(dense, self.hidden, RESAMPLES).items()}

    def mappings_at(self, experts: float) -> dict[str, ScalingLaw]:
        """Return the mappings to show at one E: of the dense rows for a dense model, else of the whole sweep."""
        alone = experts == 1 and len(np.unique(self.sweep.points.experts)) > 1
        return self.dense_mappings if alone else self.mappings

    @property
    def fitted_rows(self) -> str:
        """Which rows mappings were fitted to, as a caption continues."""
        several = len(np.unique(self.sweep.points.experts)) > 1 and 1 in self.sweep.points.experts
        alone = " (at E = 1, to the dense rows alone)" if several else ""
        return (f" without {self.hidden}" if self.hidden else "") + alone

    @property
    def simulated(self) -> bool:
        """Whether the sweep was drawn from the law."""
        return self.observations is None

    @property
    def truth(self) -> ScalingLaw | None:
        """What the sweep was simulated from; None for losses of real runs."""
        return self.law if self.observations is None else None

    @property
    def fitted(self) -> ScalingLaw:
        """The law shown with the sweep: the given one, or a fit to the simulated sweep."""
        if self.observations is not None:
            return self.law
        return self.mappings.get(self.law.mapping.name, list(self.mappings.values())[-1])

    @property
    def where(self) -> str:
        """Where the sweep's losses come from, as a caption continues."""
        return f"of {self.sweep.source}" if self.truth is None else f"simulated from {self.law.name}"

    def prepare(self) -> None:
        """Fit what several pictures share, once."""
        with suppress(InputError):  # reported by the pictures that need it
            self.mappings, self.dense_mappings  # noqa: B018

    def origin(self, name: str) -> str:
        """Return the sentence on where a table comes from, for the end of a caption."""
        return "" if self.origins is None or name not in self.origins else f" {self.origins[name]}"
