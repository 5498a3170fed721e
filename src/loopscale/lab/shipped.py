"""The trained model that comes with loopscale."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from loopscale.lab.scores import Scores, score
from loopscale.train.data.puzzles import task_called
from loopscale.train.data.tasks import Task


def shipped_folder() -> Path:
    """Return the folder of the model of the word problem of S3."""
    return Path(str(resources.files("loopscale.lab") / "data" / "s3"))


def shipped_model() -> Any:
    """Return the shipped model of S3, as Transformers loads it."""
    from loopscale.lab.training import load

    return load(shipped_folder())


def shipped_task() -> Task:
    """Return the task that the shipped model was trained on."""
    return task_called("s3", 12)


def show_shipped(most: int = 16, count: int = 512) -> Scores:
    """Score the shipped model on new words at R = 1 to ``most``; it takes seconds."""
    return score(shipped_model(), shipped_task(), most, count=count)
