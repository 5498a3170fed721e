"""Test-time scaling of one model: more passes than in training, longer problems, and early exit by position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from loopscale.lab.scores import ExitScores, Scores, score, score_exit
from loopscale.model import Exit, LoopedMoEForCausalLM
from loopscale.train.data.tasks import Task

LONGER = (1.0, 1.25, 1.5, 2.0)
"""Difficulties that are scored, as multiples of the trained one."""
THRESHOLDS = (1e-4, 1e-3, 1e-2)
"""Changes between two passes, in nats, below which a position stops."""


@dataclass(frozen=True)
class TestTime:
    """What a model does with more passes."""

    trained: int
    """R in training, or its mean."""
    scores: tuple[Scores, ...]
    """At each difficulty, the trained one first, up to twice the trained R and a fifth more."""
    exits: dict[float, ExitScores]
    """By threshold, at the trained difficulty."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "kind": "test-time scaling",
            "schema": 1,
            "trained_recurrence": self.trained,
            "difficulties": [one.to_dict() for one in self.scores],
            "exits": {f"{threshold:g}": one.to_dict() for threshold, one in self.exits.items()},
        }


def measure(model: LoopedMoEForCausalLM, task: Task, *, count: int = 512) -> TestTime:
    """Score a model at up to 2.4 times the R of training, on problems of up to twice the difficulty, and with exit."""
    most = round(2.4 * model.config.recurrence)
    difficulties = dict.fromkeys(min(task.hardest, round(times * task.difficulty)) for times in LONGER)
    scores = tuple(score(model, replace(task, difficulty=harder), most, count=count) for harder in difficulties)
    exits = {threshold: score_exit(model, task, Exit("kl", threshold), most, count=count) for threshold in THRESHOLDS}
    return TestTime(model.config.recurrence, scores, exits)
