"""Which injections train reliably: words of S3 with 4 elements at R = 6, for each injection and seed.

    python experiments/lab/injections.py --seeds 5

It resumes: a row of injections.csv is never trained again. About ten seconds of an idle core for each run. The
recipe is that of the loop in ``loopscale lab two-axes``, whose shipped runs are the rows of "normed".
"""

from __future__ import annotations

import argparse
import csv
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from loopscale.lab.scores import status
from loopscale.lab.training import train_task
from loopscale.lab.two_axes import PASSES, TASKS, shipped_rows
from loopscale.model.rules import CHOICES

HERE = Path(__file__).parent
COLUMNS = ("injection", "seed", "accuracy", "status", "weights", "steps", "cpu_seconds")
NORMED = "normed"


def normed_rows(seeds: int) -> list[dict[str, Any]]:
    """Return the shipped runs of the same recipe with the injection "normed"."""
    return [
        {"injection": NORMED, "status": status(row["accuracy"], row["problems"], row["chance"])}
        | {name: row[name] for name in ("seed", "accuracy", "weights", "steps", "cpu_seconds")}
        for row in shipped_rows()
        if (row["task"], row["cell"]) == ("reasoning", "loop") and row["seed"] < seeds
    ]


def trained_row(injection: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one run in a folder, which is removed at the end, and return its row."""
    recipe = replace(TASKS["reasoning"], recurrence=PASSES, seed=seed, injection=injection)
    run = train_task(recipe, folder, most=PASSES, model=False)
    shutil.rmtree(folder)
    row = {"injection": injection, "seed": seed, "accuracy": round(run.scores.at(PASSES), 4)}
    facts = {name: run.facts[name] for name in ("weights", "steps", "cpu_seconds")}
    return row | {"status": run.scores.status(PASSES)} | facts


def main() -> None:
    """Train what is missing, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "injections.csv")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = normed_rows(options.seeds)
    if options.out.is_file():
        with options.out.open(newline="") as file:
            rows += [row for row in csv.DictReader(file) if row["injection"] != NORMED]
    done = {(row["injection"], int(row["seed"])) for row in rows}
    for seed in range(options.seeds):
        for injection in CHOICES["injection"]:
            if (injection, seed) not in done and injection is not None:
                rows.append(trained_row(injection, seed, options.out.parent / "runs" / f"{injection}-{seed}"))
                with options.out.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    writer.writeheader()
                    writer.writerows(rows)


if __name__ == "__main__":
    main()
