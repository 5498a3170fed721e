"""Train a task, with its scores while it trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from loopscale.core.errors import InputError
from loopscale.core.files import read_json, write_json
from loopscale.lab.recipes import LabRecipe
from loopscale.lab.scores import Scores, score
from loopscale.model import LoopedMoEForCausalLM
from loopscale.model.loading import load_model
from loopscale.train import run_dir
from loopscale.train.data.puzzles import task_called
from loopscale.train.data.tasks import Task
from loopscale.train.trainer import Trainer

REPORT = "lab.json"
MOST = 24
"""The most passes at test time."""
WATCH_EVERY = 100
"""Steps between two measurements of the accuracy during training."""
WATCH_PROBLEMS = 256

Watch = Callable[[int, int, Scores], None]
"""Called with the step, all steps, and the scores on a few problems."""


@dataclass(frozen=True)
class LabRun:
    """A trained model with its scores."""

    recipe: LabRecipe
    folder: Path
    scores: Scores
    longer: Scores | None
    """On longer problems than any in training."""
    facts: dict[str, Any]
    """Weights, FLOPs and seconds."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "kind": "lab run",
            "schema": 1,
            "seed": self.recipe.seed,
            **self.facts,
            **self.scores.to_dict(),
            "reported_recurrence": min(self.recipe.reported, self.scores.most),
            "status": self.scores.status(min(self.recipe.reported, self.scores.most)),
            "longer": None if self.longer is None else self.longer.to_dict(),
            "recipe": asdict(self.recipe),
        }


def train_task(
    recipe: LabRecipe,
    folder: Path,
    *,
    watch: Watch | None = None,
    most: int | None = None,
    count: int = 1024,
    model: bool = True,
) -> LabRun:
    """Train a recipe in a folder, resuming what an earlier call left, and score it at every R up to ``most``.

    ``watch`` is called with the scores every ``WATCH_EVERY`` steps. One thread computes, because the matrices are too
    small for more.
    """
    task = recipe.problem
    most = most or (MOST if recipe.recurrence > 1 else 1)
    with one_thread():
        clock, cpu = time.perf_counter(), time.process_time()
        trainer = Trainer(recipe.config(), folder)
        try:
            with run_dir.locked(folder):
                trainer.resume()
                while trainer.step < trainer.config.steps:
                    trainer.train(until=trainer.step - trainer.step % WATCH_EVERY + WATCH_EVERY)
                    if watch is not None:
                        scores = score(trainer.model, task, min(most, 16), count=WATCH_PROBLEMS)
                        watch(trainer.step, trainer.config.steps, scores)
                report = read_json(folder / REPORT) if (folder / REPORT).is_file() else {}
                before = report if isinstance(report, dict) else {}  # of an earlier call, whose time counts too
                seconds = before.get("seconds", 0.0) + time.perf_counter() - clock
                cpu_seconds = before.get("cpu_seconds", 0.0) + time.process_time() - cpu
                summary = trainer.finish(model=model)
                scores = score(trainer.model, task, most, count=count)
                longer = None if task.longer is None else score(trainer.model, task, most, count=count, split="longer")
        finally:
            trainer.process.close()
    facts = {
        "weights": sum(weight.numel() for weight in trainer.model.parameters()),
        "training_flops": summary["training_flops"],
        "real_training_flops": summary["real_training_flops"],
        "steps": trainer.config.steps,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
    }
    run = LabRun(recipe, folder, scores, longer, facts)
    write_json(folder / REPORT, run.to_dict())
    return run


def load(folder: str | Path) -> LoopedMoEForCausalLM:
    """Return the model of a run, or of a model's folder."""
    return load_model(run_dir.model_of(folder))


def task_of(folder: str | Path, name: str | None = None, difficulty: int | None = None) -> Task:
    """Return the task that the run in a folder was trained on, or the one that is named."""
    if not Path(folder).is_dir():
        raise InputError(f"{folder}: no such folder; give that of a run or of a model")
    run = run_dir.run_of(run_dir.model_of(folder))
    stored = None if run is None else run_dir.stored_config(run)
    data = {} if stored is None else stored.data.model_dump()
    if name is None and data.get("task") is None:
        raise InputError(f"{folder}: no run on a task left this model; name its `task`, like s3")
    same = name is None or name == data.get("task")
    own = data if same else {}
    return task_called(name or data["task"], difficulty or own.get("difficulty"), own.get("task_seed", 0))


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread within the block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
