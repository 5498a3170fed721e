"""Small experiments in which looping and experts visibly work: train a task in minutes, and score it pass by pass."""

from loopscale.core.errors import check_extra

check_extra("train", "the laboratory")

# ruff: noqa: E402
from loopscale.lab.recipes import Recipe
from loopscale.lab.scores import Scores, score
from loopscale.lab.shipped import shipped_model, show_shipped
from loopscale.lab.training import LabRun, train_task

__all__ = ["LabRun", "Recipe", "Scores", "score", "shipped_model", "show_shipped", "train_task"]
