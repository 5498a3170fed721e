"""Two axes, two tasks: what recurrence and experts each do for reasoning and for knowledge.

Reasoning is the word problem of S3, knowledge a set of random facts. Each is trained at E = 1 and 8, with R = 1 and
6, in a model of one layer. The control has six separate layers and no loop: the compute of R = 6. These cells have
equal steps. Two more give the models without a loop six times the steps: the training FLOPs of R = 6.

Every seed has the same problems, order and initial weights in all cells, so that differences are taken seed by seed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from loopscale.lab.recipes import LabRecipe
from loopscale.lab.scores import AT_CHANCE, status
from loopscale.lab.tables import Mean, Row, RunColumns
from loopscale.lab.training import LabRun, train_task

EXPERTS, PASSES = 8, 6
RESULTS = "two-axes.csv"
TABLE = RunColumns(
    "two-axes",
    texts=("task", "cell"),
    numbers=("experts", "recurrence", "layers", "steps", "seed", "weights", "problems"),
    reals=("training_flops", "real_training_flops", "accuracy", "chance", "loss", "bits", "seconds", "cpu_seconds"),
)


@dataclass(frozen=True)
class Variant:
    """A model of the comparison."""

    name: str
    experts: int = 1
    spent_on: Literal["nothing", "recurrence", "layers", "steps"] = "nothing"
    """What has ``PASSES`` times as much as in the plain model."""

    def times(self, what: str) -> int:
        """Return how much more recurrence, layers or steps it has than the plain model."""
        return PASSES if self.spent_on == what else 1

    @property
    def about(self) -> str:
        """The model in a few words."""
        if self.spent_on == "layers":
            return f"{PASSES} separate layers"
        model = f"E = {self.experts}, R = {self.times('recurrence')}"
        return f"{model}, {PASSES}x the steps" if self.spent_on == "steps" else model


CELLS = (
    Variant("plain"),
    Variant("experts", EXPERTS),
    Variant("loop", spent_on="recurrence"),
    Variant("both", EXPERTS, "recurrence"),
    Variant("layers", spent_on="layers"),
)
EQUAL_FLOPS = (Variant("plain-longer", spent_on="steps"), Variant("experts-longer", EXPERTS, "steps"))
TASKS = {
    "reasoning": LabRecipe(
        task="s3", difficulty=4, width=32, steps=1200, batch=32, learning_rate=4e-3, random_recurrence=False
    ),
    "knowledge": LabRecipe(
        task="facts", difficulty=3072, width=16, steps=600, batch=256, learning_rate=5e-3, random_recurrence=False
    ),
}


def recipe_of(subject: str, cell: Variant, seed: int) -> LabRecipe:
    """Return the recipe of a cell for reasoning or for knowledge."""
    base = TASKS[subject]
    return replace(
        base,
        experts=cell.experts,
        recurrence=cell.times("recurrence"),
        layers=cell.times("layers"),
        steps=base.steps * cell.times("steps"),
        seed=seed,
    )


def run(
    out: Path,
    seeds: Iterable[int],
    cells: Sequence[Variant] = CELLS,
    *,
    tell: Callable[[str, int, Row | None], None] = lambda *_: None,
) -> list[Row]:
    """Train every cell on both tasks with each seed, and return all rows; what ``out`` already holds is not repeated.

    ``tell`` is called before and after each run with what it is and its seed, and after it with its row.
    """
    path = out / RESULTS
    rows = TABLE.read(path) if path.is_file() else []
    done = {(row["task"], row["cell"], row["seed"]) for row in rows}
    for seed in seeds:
        for subject in TASKS:
            for cell in cells:
                if (subject, cell.name, seed) in done:
                    continue
                about = f"{subject}, {cell.about}"
                tell(about, seed, None)
                folder = out / "runs" / f"{subject}-{cell.name}-seed{seed}"
                recipe = recipe_of(subject, cell, seed)
                trained = train_task(recipe, folder, most=recipe.recurrence, model=False)
                rows.append(_row(subject, cell, trained))
                TABLE.write(path, rows)
                shutil.rmtree(folder)
                tell(about, seed, rows[-1])
    return rows


def _row(subject: str, cell: Variant, trained: LabRun) -> Row:
    scores, R = trained.scores, trained.recipe.recurrence
    facts = {name: trained.facts[name] for name in TABLE.columns if name in trained.facts}
    return {
        "task": subject,
        "cell": cell.name,
        "experts": cell.experts,
        "recurrence": R,
        "layers": trained.recipe.layers,
        "seed": trained.recipe.seed,
        "problems": scores.count,
        **facts,
        "accuracy": round(scores.at(R), 4),
        "chance": round(scores.task.chance, 4),
        "loss": round(float(scores.loss_R[R - 1]), 4),
        "bits": round(scores.bits(R)),
    }


def shipped_rows() -> list[Row]:
    """Return the runs that come with loopscale."""
    return TABLE.shipped()


def accuracy(rows: Sequence[Row], subject: str, cell: str) -> dict[int, float]:
    """Return the accuracy of a cell by seed."""
    return {row["seed"]: row["accuracy"] for row in rows if (row["task"], row["cell"]) == (subject, cell)}


def difference(rows: Sequence[Row], subject: str, cell: str, other: str) -> Mean | None:
    """Return how much more accurate a cell is than another, seed by seed; None without a common seed."""
    first, second = accuracy(rows, subject, cell), accuracy(rows, subject, other)
    common = sorted(set(first) & set(second))
    return Mean.of([first[seed] - second[seed] for seed in common]) if common else None


QUESTIONS = (
    ("loop", "plain", "recurrence, equal steps"),
    ("loop", "plain-longer", "recurrence, equal training FLOPs"),
    ("experts", "plain", "experts, equal steps"),
    ("experts-longer", "plain-longer", f"experts, {PASSES}x the steps of both"),
    ("both", "loop", "experts in a loop"),
    ("both", "experts", "recurrence with experts"),
    ("loop", "layers", f"a loop against {PASSES} separate layers"),
)
"""A cell, the cell it is compared with, and what the difference shows."""


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return means and differences as plain values."""
    cells = []
    for subject in TASKS:
        for cell in (*CELLS, *EQUAL_FLOPS):
            of_cell = [row for row in rows if (row["task"], row["cell"]) == (subject, cell.name)]
            if not of_cell:
                continue
            mean = Mean.of([row["accuracy"] for row in of_cell])
            first = of_cell[0]
            cells.append(
                {
                    "task": subject,
                    "cell": cell.name,
                    "model": cell.about,
                    **{name: first[name] for name in ("weights", "training_flops", "chance")},
                    "accuracy": mean.value,
                    "interval": mean.interval,
                    "seeds": mean.seeds,
                    "bits": fmean(row["bits"] for row in of_cell),
                    "at_chance": status(mean.value, mean.seeds * first["problems"], first["chance"]) == AT_CHANCE,
                    "cpu_seconds": fmean(row["cpu_seconds"] for row in of_cell),
                }
            )
    differences = []
    for subject in TASKS:
        for name, other, about in QUESTIONS:
            change = difference(rows, subject, name, other)
            if change is not None:
                differences.append(
                    {"task": subject, "cell": name, "against": other, "about": about}
                    | change.to_dict()
                    | {"clear": change.clear}
                )
    return {"kind": "two axes", "schema": 1, "cells": cells, "differences": differences}
