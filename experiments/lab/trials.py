"""Runs of the laboratory that no command makes: ``python experiments/lab/trials.py injections|capacity``.

- injections: words of S3 with 4 elements at R = 6, the loop of ``loopscale lab two-axes`` with each injection. About
  seven seconds of an idle core for a run.
- capacity: more facts than a model of one pass can hold, with one and with eight times the experts, four and twelve
  times as long as in two axes. About half a minute for a run.

Every run is a row of injections.csv or capacity.csv; what has a row is not trained again.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from loopscale.lab.recipes import LabRecipe
from loopscale.lab.training import train_task
from loopscale.lab.two_axes import EXPERTS, PASSES, TASKS
from loopscale.model.rules import CHOICES

HERE = Path(__file__).parent
RESULTS = ("accuracy", "status", "weights", "steps", "cpu_seconds")


def injections(seed: int) -> dict[str, LabRecipe]:
    """Return the looped model of words with each injection, by the injection."""
    loop = replace(TASKS["reasoning"], recurrence=PASSES, seed=seed)
    return {name: replace(loop, injection=name) for name in CHOICES["injection"]}


def capacity(seed: int) -> dict[str, LabRecipe]:
    """Return models of one pass on 8,192 facts, by experts and steps."""
    base = replace(TASKS["knowledge"], difficulty=8192, recurrence=1, seed=seed)
    return {
        f"E = {experts}, {times}x the steps": replace(base, experts=experts, steps=times * base.steps)
        for experts in (1, EXPERTS)
        for times in (4, 12)
    }


TRIALS = {"injections": (injections, 10), "capacity": (capacity, 3)}
"""The recipes of a seed, and how many seeds."""


def trained_row(recipe: LabRecipe, folder: Path) -> dict[str, Any]:
    """Train one run in a folder, which is removed at the end, and return its results."""
    run = train_task(recipe, folder, most=recipe.recurrence, model=False)
    shutil.rmtree(folder)
    R = recipe.recurrence
    scores = {"accuracy": round(run.scores.at(R), 4), "status": run.scores.status(R)}
    return scores | {name: run.facts[name] for name in RESULTS[2:]}


def main() -> None:
    """Train what is missing, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trial", choices=TRIALS)
    options = parser.parse_args()
    recipes, seeds = TRIALS[options.trial]
    path = HERE / f"{options.trial}.csv"
    rows: list[dict[str, Any]] = []
    if path.is_file():
        with path.open(newline="") as file:
            rows += csv.DictReader(file)
    done = {(row["model"], int(row["seed"])) for row in rows}
    for seed in range(seeds):
        for name, recipe in recipes(seed).items():
            if (name, seed) in done:
                continue
            rows.append({"model": name, "seed": seed} | trained_row(recipe, HERE / "runs" / f"{options.trial}-{seed}"))
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, ("model", "seed", *RESULTS), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
