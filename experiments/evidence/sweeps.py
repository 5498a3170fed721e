"""The public looped sweeps that the evidence rests on, and how each is fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from loopscale.fitting import Fit, Observations, fit, load_public
from loopscale.fitting.data.public import load_micro

R_D = 15.387756
"""Repetitions after which repeated tokens stop helping, as Muennighoff et al. 2023 print it."""
REPEATED_TOKENS = 5e8
"""Runs with fewer unique tokens than this are those of ten epochs."""


@dataclass(frozen=True)
class Sweep:
    """Runs of one laboratory under one recipe, and the form that is fitted to them."""

    label: str
    observations: Observations
    outer: str = "chinchilla"
    fixed: Mapping[str, float] = field(default_factory=dict)
    pooled: bool = False
    """Whether it counts in the pooled interval: one baseline sweep for each laboratory and regime."""
    general: str = "general"
    """The general mapping that suits it."""

    def fitted(self, mapping: str, *, resamples: int = 0) -> Fit:
        """Return a fit without prior knowledge of the curve."""
        return fit(
            self.observations, outer=self.outer, mapping=mapping, fixed=self.fixed, resamples=resamples,
            recipe="no-prior",
        )  # fmt: skip


def data_term() -> dict[str, float]:
    """Return B and beta of the sweep that varies the tokens, for those that do not."""
    law = fit(load_public("qlabs-loops"), outer="chinchilla", mapping="bounded", resamples=0).law
    return {name: law.coefficients[name] for name in ("B", "beta")}


def repeated(observations: Observations) -> np.ndarray:
    """Tell which runs see their tokens ten times."""
    assert observations.points.unique_tokens is not None
    return np.asarray(observations.points.unique_tokens < REPEATED_TOKENS)


def looped_sweeps() -> list[Sweep]:
    """Return every public sweep of looped dense models, and our own of sparse ones."""
    data, regimes = data_term(), load_public("qlabs-regimes")
    fresh = load_public("qlabs-regimes", weight_decay=0.05)
    sweeps = [
        Sweep("Q Labs, equal compute", load_public("qlabs-loops"), pooled=True),
        Sweep("Q Labs, fresh, weight decay 0.05", fresh.where(~repeated(fresh)), fixed=data),
        Sweep(
            "Q Labs, 1 and 10 epochs, weight decay 0.8", regimes, "chinchilla+stored-overfit", {**data, "R_D": R_D},
            pooled=True,
        ),
    ]  # fmt: skip
    titles = {"baseline": "Iso-Depth", "hyperconn": "Iso-Depth, hyper-connections", "trunc_bptt": "Iso-Depth, BPTT cut"}
    sweeps += [
        Sweep(title, load_public("isodepth", variant=variant), pooled=variant == "baseline")
        for variant, title in titles.items()
    ]
    return [*sweeps, Sweep("our micro-sweep, E 1 to 16", load_micro(), "joint-moe", general="general-conditional")]
