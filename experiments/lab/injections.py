"""Which injections train reliably: words of S3 with 4 elements at R = 6, for each injection and seed.

    python experiments/lab/injections.py --seeds 10

It resumes: a row of injections.csv is never trained again. About ten seconds of an idle core for each run.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from dataclasses import replace
from pathlib import Path

from loopscale.lab.training import train_task
from loopscale.lab.two_axes import PASSES, TASKS
from loopscale.model.config import INJECTIONS

HERE = Path(__file__).parent
COLUMNS = ("injection", "seed", "accuracy", "best", "best_recurrence", "status", "weights", "steps", "cpu_seconds")


def main() -> None:
    """Train what is missing, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=HERE / "injections.csv")
    options = parser.parse_args()
    rows: list[dict[str, str]] = []
    if options.out.is_file():
        with options.out.open(newline="") as file:
            rows = list(csv.DictReader(file))
    done = {(row["injection"], int(row["seed"])) for row in rows}
    order = ("normed", *(name for name in INJECTIONS if name != "normed"))
    for seed in range(options.seeds):
        for injection in order:
            if (injection, seed) in done:
                continue
            recipe = replace(TASKS["reasoning"], recurrence=PASSES, seed=seed, injection=injection)
            folder = options.out.parent / "runs" / f"{injection}-{seed}"
            run = train_task(recipe, folder, most=2 * PASSES, model=False)
            best = max(range(1, 2 * PASSES + 1), key=run.scores.at)
            values = (injection, seed, round(run.scores.at(PASSES), 4), round(run.scores.at(best), 4), best)
            more = (run.scores.status(PASSES), run.facts["weights"], run.facts["steps"], run.facts["cpu_seconds"])
            rows.append(dict(zip(COLUMNS, map(str, (*values, *more)), strict=True)))
            with options.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(rows)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
