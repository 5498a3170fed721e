"""The trained models that come with loopscale: ``s3``, and the smaller ``s3-experts``, with 2 of 8 experts."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from loopscale.lab.scores import Scores, score
from loopscale.model import LoopedMoEForCausalLM
from loopscale.model.loading import load_model
from loopscale.train.data.puzzles import task_called
from loopscale.train.data.tasks import Task


def shipped_folder(name: str = "s3") -> Path:
    """Return the folder of a model of the word problem of S3."""
    return Path(str(resources.files("loopscale.lab") / "data" / name))


def shipped_model(name: str = "s3") -> LoopedMoEForCausalLM:
    """Return a shipped model."""
    return load_model(shipped_folder(name))


def shipped_task() -> Task:
    """Return the task that the shipped model was trained on."""
    return task_called("s3", 12)


def show_shipped(most: int = 16, count: int = 512) -> Scores:
    """Score the shipped model on new words at R = 1 to ``most``; it takes seconds."""
    return score(shipped_model(), shipped_task(), most, count=count)
