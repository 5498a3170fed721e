"""What the second micro-sweep can decide, before it is run: ``python power.py [planned|amended] [repeats]``.

Paired seeds for a difference in the loss, from the spread that earlier runs showed, and the 90% intervals of kappa1,
kappa2 and theta over simulated sweeps of the planned design.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from math import sqrt

import numpy as np

from loopscale.architecture import Architecture
from loopscale.choosing import pairs_needed
from loopscale.fitting import Observations, fit
from loopscale.fitting.data.public import load_micro, stacked
from loopscale.scaling import ScalingLaw

EXPERTS, PASSES = (1, 2, 4, 8), (1, 2, 3, 4)
DESIGNS = {"planned": ((24, 32, 48), (150e3, 500e3, 1.5e6)), "amended": ((16, 24, 32), (60e3, 200e3, 600e3))}
"""Widths and tokens of the sweep as first planned, and as amended before it started."""
DECIDING = [(32, E, R) for E in (1, 8) for R in (1, 4)]
SEEDS = 6
RUN_NOISE, POINT_NOISE = 0.010, 0.004
TRUTHS = {
    "micro's": {},
    "the paper's": {"kappa1": 0.3682, "kappa2": 1.4037, "theta": 0.3286},
    "a gain of a third of micro's": {"kappa1": 0.09},
}
"""Coefficients of recurrence that the simulated sweeps follow; the others are the fit of the first micro-sweep."""


def architecture(width: int, experts: int) -> Architecture:
    """Return a model of the sweep: 1 + 2 + 1 layers, heads of 8."""
    from loopscale.train.config import TrainConfig

    section = {"width": width, "head_size": 8, "kv_heads": width // 8, "experts": experts}
    return TrainConfig.from_dict({"model": section}).model.config(256, 128).to_architecture()


def simulated(design: str, law: ScalingLaw, seed: int, noise: float = 1.0) -> Observations:
    """Return one sweep of a design that follows ``law``, with the noise of earlier runs times ``noise``."""
    sizes, lengths = DESIGNS[design]
    cells = [(*cell, 0) for cell in product(sizes, EXPERTS, PASSES)]
    cells += [(*cell, number) for cell in DECIDING for number in range(1, SEEDS)]
    points = stacked(architecture(width, E).points(np.array(lengths), R, law.counts) for width, E, R, _ in cells)
    random = np.random.default_rng(seed)
    shift = np.repeat(random.normal(0, noise * RUN_NOISE, len(cells)), len(lengths))
    loss = law(points) + shift + random.normal(0, noise * POINT_NOISE, len(shift))
    names = np.repeat(np.array([str(cell) for cell in cells]), len(lengths))
    return Observations(points, loss, names, "simulated", law.counts, finished=np.ones(len(loss), dtype=bool))


def intervals(design: str, repeats: int) -> None:
    """Print how far estimates of the recurrence coefficients spread over simulated sweeps."""
    base = fit(load_micro(), outer="joint-moe", mapping="sparsity-conditional", resamples=0).law
    for name, changed in TRUTHS.items():
        law = replace(base, coefficients={**base.coefficients, **changed})
        for width, E, R in DECIDING[1::2]:
            gain = [
                float(law(architecture(width, E).points(DESIGNS[design][1][-1], r, law.counts)).item()) for r in (1, R)
            ]
            print(f"{name}: gain of R = {R} at width {width}, E = {E}, the longest D: {gain[0] - gain[1]:.4f}")
        for noise in (1.0, 0.25):
            print_spread(
                f"{name}, noise x {noise:g}", law, [simulated(design, law, seed, noise) for seed in range(repeats)]
            )


def print_spread(name: str, law: ScalingLaw, sweeps: list[Observations]) -> None:
    """Print the range of 90% of the estimates."""
    found = [fit(each, outer="joint-moe", mapping="sparsity-conditional", resamples=0).law for each in sweeps]
    for coefficient in ("kappa1", "kappa2", "theta"):
        low, high = np.quantile([each.coefficients[coefficient] for each in found], [0.05, 0.95])
        print(f"{name}: {coefficient} = {law.coefficients[coefficient]:.3f}, 90% of estimates {low:.3f} to {high:.3f}")


def main() -> None:
    """Print both."""
    for spread in (0.010, 0.0144, 0.0186):
        standard_error = next(n for n in range(2, 1000) if spread / sqrt(n) <= 0.006)
        print(
            f"spread {spread}: {pairs_needed(0.01, spread)} pairs for 0.01 nats, {standard_error} for an error of 0.006"
        )
    intervals(sys.argv[1] if len(sys.argv) > 1 else "amended", int(sys.argv[2]) if len(sys.argv) > 2 else 30)


if __name__ == "__main__":
    main()
