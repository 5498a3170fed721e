"""The downstream experiment: reasoning, knowledge and text in one model, at sizes, E, R and matched training FLOPs.

docs/lab-protocol.md says what is trained and what decides. A budget is a number of passes times steps: a model with
half the passes has twice the steps, and so the same training FLOPs. Every seed has the same problems in the same order
in all cells, so that differences are taken seed by seed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loopscale.core.errors import InputError
from loopscale.lab.recipes import LabRecipe
from loopscale.lab.scores import answers_by_pass
from loopscale.lab.tables import Row, RunColumns
from loopscale.lab.training import one_thread
from loopscale.model import LoopedMoEForCausalLM
from loopscale.model.psi import path_diversity
from loopscale.train.data.batches import IGNORED
from loopscale.train.data.mixture import PARTS, Mixture
from loopscale.train.trainer import Trainer

WIDTHS, EXPERTS, PASSES = (32, 48), 8, (1, 3, 6)
BUDGET = 7200
"""Passes times steps of the larger budget. The smaller is a sixth: R = 1 then has the steps that R = 6 has here."""
BATCH, LEARNING_RATE, ENTITIES, PROBLEMS = 64, 4e-3, 1024, 2048
RESULTS, DONE = "downstream.csv", "done"
SUMMARY = ("active", "total", "tokens", "training_flops", "real_training_flops")
"""What a row takes from the summary of its run."""
TABLE = RunColumns(
    "downstream",
    texts=("status",),
    numbers=("width", "experts", "recurrence", "layers", "budget", "steps", "seed", "weights", *SUMMARY[:3]),
    reals=(
        *SUMMARY[3:], "words", "facts", "words_loss", "facts_loss", "text_loss", "words_psi",
        "facts_psi", "seconds", "cpu_seconds",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class BudgetedModel:
    """A model of the experiment and its budget."""

    width: int
    experts: int = 1
    recurrence: int = 1
    layers: int = 1
    """More than one: separate layers instead of a loop."""
    budget: int = BUDGET
    """Passes, or layers, times steps."""

    @property
    def steps(self) -> int:
        """Training steps."""
        return self.budget // (self.recurrence * self.layers)

    @property
    def about(self) -> str:
        """The cell in a few words."""
        model = f"{self.layers} layers" if self.layers > 1 else f"E = {self.experts}, R = {self.recurrence}"
        return f"width {self.width}, {model}, {self.steps:,} steps"

    def recipe(self, seed: int) -> LabRecipe:
        """Return how it is trained."""
        return LabRecipe(
            task="mixture", difficulty=ENTITIES, recurrence=self.recurrence, experts=self.experts, layers=self.layers,
            width=self.width, steps=self.steps, batch=BATCH, learning_rate=LEARNING_RATE, seed=seed,
            random_recurrence=False,
        )  # fmt: skip

    def is_of(self, row: Row) -> bool:
        """Tell whether a row is a run of this cell."""
        names = ("width", "experts", "recurrence", "layers", "budget")
        return all(row[name] == getattr(self, name) for name in names)


def _cells() -> tuple[BudgetedModel, ...]:
    cells = []
    most = PASSES[-1]
    for width in WIDTHS:
        for budget in (BUDGET // most, BUDGET):
            cells += [BudgetedModel(width, 1, R, budget=budget) for R in PASSES]
            cells += [BudgetedModel(width, EXPERTS, R, budget=budget) for R in (1, most)]
            cells.append(BudgetedModel(width, layers=most, budget=budget))
        cells.append(BudgetedModel(width, 1, PASSES[1], budget=BUDGET * PASSES[1] // most))  # the steps of R = 6
    return tuple(cells)


CELLS = _cells()


def run(
    out: Path,
    seeds: Iterable[int],
    cells: Sequence[BudgetedModel] = CELLS,
    *,
    tell: Callable[[str, int, Row | None], None] = lambda *_: None,
) -> list[Row]:
    """Train every cell with each seed, and return all rows; what ``out`` already holds is not repeated.

    ``tell`` is called before and after each run with its cell and seed, and after it with its row. A run that fails is
    a row too, with its reason.
    """
    path = out / RESULTS
    rows = TABLE.read(path) if path.is_file() else []
    for seed in seeds:
        for cell in cells:
            if any(row["seed"] == seed and cell.is_of(row) for row in rows):
                continue
            tell(cell.about, seed, None)
            rows.append(train_cell(cell, seed, out / "runs" / f"{len(rows)}"))
            TABLE.write(path, rows)
            tell(cell.about, seed, rows[-1])
    return rows


def train_cell(cell: BudgetedModel, seed: int, folder: Path) -> Row:
    """Train one run in a folder, which is removed at the end, and return its row."""
    recipe = cell.recipe(seed)
    shutil.rmtree(folder, ignore_errors=True)
    names = ("width", "experts", "recurrence", "layers", "budget", "steps")
    row: Row = {name: getattr(cell, name) for name in names} | {"seed": seed, "status": DONE}
    clock, cpu = time.perf_counter(), time.process_time()
    with one_thread():
        trainer = Trainer(recipe.config(), folder)
        row["weights"] = sum(weight.numel() for weight in trainer.model.parameters())
        try:
            trainer.train()
            summary = trainer.finish(model=False)
            row |= {name: summary[name] for name in SUMMARY}
            row |= score_parts(trainer.model, recipe.problem, cell.recurrence)
        except InputError as error:
            row["status"] = str(error).replace(",", ";").replace("\n", " ")
        finally:
            trainer.process.close()
    row["seconds"], row["cpu_seconds"] = time.perf_counter() - clock, time.process_time() - cpu
    shutil.rmtree(folder, ignore_errors=True)
    return row


def score_parts(model: LoopedMoEForCausalLM, task: Any, recurrence: int) -> dict[str, float]:
    """Return accuracy, loss (nats per answer) and expert-path diversity of every part at R passes.

    Words and text are new, and every fact is asked for.
    """
    assert isinstance(task, Mixture)
    row: dict[str, float] = {}
    for part in PARTS:
        ids_BT = task.validation(part, PROBLEMS)
        answers_BT = task.solve(ids_BT)
        predicted_RBT, loss_R = answers_by_pass(model, ids_BT, answers_BT, recurrence)
        right_BT = (predicted_RBT[-1] == answers_BT)[:, -1:] if part == "words" else predicted_RBT[-1] == answers_BT
        asked_BT = answers_BT[:, -right_BT.shape[1] :] != IGNORED
        if part != "text":
            row[part] = float(np.mean(right_BT[asked_BT]))
            ids = torch.from_numpy(ids_BT)
            paths = path_diversity(model, [(ids, torch.ones_like(ids))], recurrence)
            row[f"{part}_psi"] = float(paths.tokens.mean_R[-1])
        row[f"{part}_loss"] = float(loss_R[-1])
    return row


def shipped_rows() -> list[Row]:
    """Return the runs that come with loopscale."""
    return TABLE.shipped()
