"""Do the runs that `next_runs` chooses beat a random choice, the cheapest runs and a full grid at equal compute?

python benchmarks/next_runs.py [--seeds 24] [--workers 2]
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are small: threads only cost

import numpy as np
from rich.console import Console
from rich.table import Table

from design_trials import DesignTrial, simulate_design
from loopscale.choosing import Goal


def trials(goal: Goal, share: float, seeds: int, workers: int) -> list[DesignTrial]:
    """Return the trials of all seeds."""
    with ProcessPoolExecutor(workers) as pool:
        found = pool.map(partial(simulate_design, goal=goal, budget_share=share), range(seeds))
        return [each for trial in found for each in trial]


def summary(found: list[DesignTrial], title: str) -> Table:
    """Return the error of each strategy over the seeds, and how often `next_runs` was better on the same seed."""
    table = Table("strategy", "runs", "RMS error", "median", "10% to 90%", "next_runs better in", title=title)
    ours = np.array([each.error for each in found if each.strategy == "next_runs"])
    for name in dict.fromkeys(each.strategy for each in found):
        group = [each for each in found if each.strategy == name]
        errors = np.array([each.error for each in group])
        low, middle, high = np.quantile(errors, [0.1, 0.5, 0.9])
        runs, rms = np.mean([each.runs for each in group]), np.sqrt(np.mean(errors**2))
        table.add_row(
            name, f"{runs:.0f}", f"{rms:.5f}", f"{middle:.5f}",
            f"{low:.5f} to {high:.5f}", "" if name == "next_runs" else f"{np.mean(ours < errors):.0%}",
        )  # fmt: skip
    return table


def main() -> None:
    """Print a table for each goal and budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    for goal in Goal:
        for share in (1.0, 0.25):
            found = trials(goal, share, given.seeds, given.workers)
            announced = np.median([each.expected for each in found if each.expected is not None])
            spent = max(each.flops for each in found)
            title = f"{goal.value}, {spent:.2g} FLOPs, {given.seeds} seeds; next_runs announced {announced:.5f}"
            Console(width=120).print(summary(found, title))


if __name__ == "__main__":
    main()
