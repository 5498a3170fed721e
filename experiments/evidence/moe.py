"""What looped Mixture-of-Experts runs say about recurrence and sparsity."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopscale.fitting import fit, load_table
from loopscale.fitting.data.public import load_micro
from loopscale.scaling import PAPER, Points, ScalingLaw, costs, published, with_uncertainty

MARIN = {"E0": (18_284_544, 159_842_304, 0, 1), "E1": (9_142_272, 79_921_152, 3_047_424, 4)}
"""N_act, N_total, N_loop and R of Marin's model without a loop and of its plain looped one."""
MARIN_TOKENS = 837_156_864


def marin(law: ScalingLaw) -> dict[str, Any]:
    """Return how far Marin's looped variants lie above the model without a loop, and what a law expects of the first.

    The looped model has half the weights and the same compute: the law too expects it to lose.
    """
    lowest: dict[str, float] = {}
    for row in load_table("marin-reentrant").records():
        lowest[row["run"]] = min(row["loss"], lowest.get(row["run"], np.inf))
    above = {run: loss - lowest["E0"] for run, loss in lowest.items() if run != "E0"}
    expected = {
        name: float(law(Points(N, MARIN_TOKENS, R, 16, loop, total))) for name, (N, total, loop, R) in MARIN.items()
    }
    unrolled = {name: costs.unrolled(N, loop, R) for name, (N, _, loop, R) in MARIN.items()}
    return {
        "above": above, "expected": expected["E1"] - expected["E0"], "unrolled": unrolled,
        "fitted from": law.fitted_range.size[0],
    }  # fmt: skip


def thetas() -> list[dict[str, Any]]:
    """Return theta, with its interval, of every sweep of looped MoE models."""
    paper = published()
    low, high = PAPER["intervals"]["values"]["theta"]
    records = [{
        "sweep": "the paper (0.3B to 1.0B, E 1 to 16, R 1 to 8)", "theta": paper.coefficients["theta"], "low": low,
        "high": high, "note": "as printed, from subsets of 90% of the rows",
    }]  # fmt: skip
    simulated = np.asarray(with_uncertainty(paper.name).resamples)[:, paper.names.index("theta")]
    low, high = np.percentile(simulated, [5, 95]).tolist()
    records.append(
        {**records[0], "sweep": "the same", "low": low, "high": high, "note": "refits of its sweep, simulated"}
    )
    for name, title in (("micro", "micro-sweep (8K to 66K, one looped layer)"), ("micro-2", "micro-2 (prelude, coda)")):
        fitted = fit(load_micro(name))
        span = next(row for row in fitted.conf_int().records() if row["coefficient"] == "theta")
        record: dict[str, Any] = {"sweep": title, "theta": span["estimate"], "low": span["low"], "high": span["high"]}
        if fitted.degenerate:  # the gain is zero on its bound, and theta multiplies it
            record |= {"theta": None, "low": None, "high": None}
        records.append(record | {"note": "no gain from looping is seen" if fitted.degenerate else ""})
    return records


def settling(law: ScalingLaw, noise: float = 0.0037, tokens_per_parameter: float = 20.0) -> list[dict[str, Any]]:
    """Return the standard error of theta that grids of runs would give, and their compute.

    The error is that of the linearised law with all of its coefficients free, one loss a run.
    """
    records = []
    sets = (("three sizes, 30M to 120M", (3e7, 6e7, 1.2e8)), ("three sizes, 100M to 400M", (1e8, 2e8, 4e8)))
    for title, sizes in sets:
        for passes in ((1, 2, 4), (1, 2, 4, 8)):
            grid = [
                (N, D * N * tokens_per_parameter, R, E)
                for N in sizes for D in (1, 2, 4) for R in passes for E in (1, 2, 4, 8, 16)
            ]  # fmt: skip
            N, D, R, E = np.array(grid).T
            points = Points(N, D, R, E, 0.75 * N, N * (1 + 0.75 * (E - 1)))
            loss, jacobian = law.value_and_gradient(points)
            scaled = jacobian * np.array([law.coefficients[name] for name in law.names]) / noise
            information = scaled.T @ scaled
            error = np.sqrt(np.linalg.pinv(information)[law.names.index("theta"), law.names.index("theta")])
            records.append(
                {
                    "runs": len(grid), "grid": f"{title}, R {', '.join(map(str, passes))}, E 1 to 16, three D",
                    "error": float(error * law.coefficients["theta"]), "flops": float(points.train_flops.sum()),
                    "mean loss": float(np.mean(loss)),
                }
            )  # fmt: skip
    return records
