"""Uncertainty of published laws whose data were never published: refits of their own sweep, simulated.

For each law below: take the design of its sweep, draw losses from the published coefficients with the published noise,
refit, and repeat. The spread of the refits is what a sweep of that design and noise can know. It is centred on the
published coefficients because the truth of every simulated sweep is the published law.

Run from the root of the repository; it writes src/loopscale/scaling/resamples.json. The Epoch law needs its
public sweep:

    LOOPSCALE_DATA=folder python experiments/published-uncertainty/simulate.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from loopscale.fitting import Observations, fit, load_public, simulate_sweep
from loopscale.scaling import BILLIONS, PUBLISHED, ScalingLaw

COUNT = 100
SHARED = 0.5
"""Share of the noise variance that the points of one run have in common. The paper does not state it; on the measured
micro-sweep it is 0.73, and 0 would make the intervals half as wide."""


def looped_moe(seed: int) -> Observations:
    """Return the paper's sweep: 90 runs, 12 losses along each."""
    law = PUBLISHED["looped-moe-2026"]
    assert law.rmse is not None
    return simulate_sweep(law, noise=law.rmse * (1 - SHARED) ** 0.5, run_noise=law.rmse * SHARED**0.5, seed=seed)


def at_public_points(name: str, sweep: str) -> Callable[[int], Observations]:
    """Return what simulates a law at the points of the public sweep that it was fitted to, one loss a run."""
    law, data = PUBLISHED[name], load_public(sweep)
    assert law.rmse is not None

    def simulate(seed: int) -> Observations:
        noise = np.random.default_rng(seed).standard_normal(len(data)) * law.rmse
        return replace(data, loss=law(data.points) + noise)

    return simulate


def refits(law: ScalingLaw, simulate: Callable[[int], Observations], fixed: dict[str, float]) -> list[list[float]]:
    """Return the coefficients of each refit, in the law's own units."""
    start, rows = law.in_units(BILLIONS), []
    for seed in range(1, COUNT + 1):
        refit = fit(
            simulate(seed), outer=law.outer.name, mapping=law.mapping.name, starts=1, resamples=0, fixed=fixed,
            warm=dict(start.coefficients),
        ).law.in_units(law.units)  # fmt: skip
        rows.append([float(f"{refit.coefficients[name]:.6g}") for name in law.names])
    return rows


def main() -> None:
    """Write the refits of every law whose design is known."""
    by = f"{COUNT} refits of a simulated copy of its sweep"
    designs = {
        "looped-moe-2026": (looped_moe, by),
        "chinchilla-epoch-2024": (at_public_points("chinchilla-epoch-2024", "epoch-chinchilla"), by),
        "iso-depth-2026": (at_public_points("iso-depth-2026", "isodepth"), f"{by}, phi held"),
    }
    content = {}
    for name, (simulate, how) in designs.items():
        law = PUBLISHED[name]
        fixed = {"phi": law.coefficients["phi"]} if "phi" in law.coefficients else {}
        rows = refits(law, simulate, fixed)
        content[name] = {"resampled_by": how, "coefficients": list(law.names), "rows": rows}
        low, high = np.percentile(rows, [5, 95], axis=0)
        for k, coefficient in enumerate(law.names):
            print(f"{name} {coefficient} {law.coefficients[coefficient]:g}: {low[k]:.4g} to {high[k]:.4g}")
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in content.items())
    Path("src/loopscale/scaling/resamples.json").write_text(f"{{{lines}}}\n")


if __name__ == "__main__":
    main()
