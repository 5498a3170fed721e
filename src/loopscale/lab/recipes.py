"""How the models of the laboratory are built and trained.

One layer that loops, without prelude and coda. What it takes to train such a loop: a decaying state to which each
pass adds the input again, output projections that start at zero, an untied output head, and R drawn at each step
around its mean, so that the answer does not depend on one number of passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loopscale.core.errors import InputError
from loopscale.train.config import TrainConfig
from loopscale.train.data.puzzles import task_called
from loopscale.train.data.tasks import Task


def reported_recurrence(recurrence: int, drawn: bool) -> int:
    """Return the test-time R of a report: the R of training, or a fifth more where R was drawn around that mean.

    Accuracy then still rises a little beyond the mean, as half of the steps had more passes.
    """
    return round(1.2 * recurrence) if drawn and recurrence > 1 else recurrence


@dataclass(frozen=True)
class LabRecipe:
    """A model of one layer, or of several that do not loop, and how it is trained on a task."""

    task: str = "s3"
    difficulty: int | None = None
    recurrence: int = 10
    """R: passes in training, or their mean."""
    experts: int = 1
    """E: experts for each active one."""
    layers: int = 1
    """Separate layers; more than one replaces the loop."""
    width: int = 64
    steps: int = 2000
    batch: int = 64
    """Problems of a step."""
    learning_rate: float = 1.5e-3
    warmup: int = 50
    seed: int = 0
    random_recurrence: bool = True
    """Draw R at each step from a Poisson distribution around ``recurrence``."""
    supervise: bool = False
    """Add the loss after every pass, not after the last only."""
    injection: str = "diagonal"
    """How the input returns before each pass; of six ways the one that learns most reliably (docs/lab.md)."""

    def __post_init__(self) -> None:
        if self.layers > 1 and self.recurrence > 1:
            raise InputError(
                f"`layers` is {self.layers} and `recurrence` is {self.recurrence}; separate layers are the control of "
                "a loop: give one of them"
            )
        if self.width % 16:
            raise InputError(f"`width` is {self.width}; it should be a multiple of 16")

    @property
    def problem(self) -> Task:
        """The task at its difficulty; facts are those of the seed."""
        return task_called(self.task, self.difficulty, self.seed if self.task in ("facts", "mixture") else 0)

    @property
    def reported(self) -> int:
        """The test-time R of a report."""
        return reported_recurrence(self.recurrence, self.random_recurrence)

    def config(self) -> TrainConfig:
        """Return the settings of the training run."""
        loops = self.recurrence > 1
        model: dict[str, Any] = {
            "width": self.width,
            "layers": self.layers,
            "edge_layers": 0,
            "kv_heads": self.width // 16,
            "experts": self.experts,
            "recurrence": self.recurrence,
            "intermediate_size": 3 * self.width,
            "moe_intermediate_size": 3 * self.width // 2,
            "injection": self.injection if loops else "none",
            "tie_word_embeddings": False,
            "residual_init": "zero",
            # Longer problems than those in training are part of the test.
            "max_position_embeddings": 4 * (self.problem.length + 1),
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        }
        if loops and self.random_recurrence:
            model["random_recurrence"] = "poisson"
        if loops and self.supervise:
            model["loop_loss_weights"] = [1.0]
        task = self.problem
        return TrainConfig.from_dict(
            {
                "model": model,
                "data": {"task": task.name, "difficulty": task.difficulty, "task_seed": task.seed},
                "optimizer": {
                    "learning_rate": self.learning_rate,
                    "betas": [0.9, 0.98],
                    "eps": 1e-8,
                    "weight_decay": 0.0,
                },
                "schedule": {"kind": "cosine", "warmup_steps": self.warmup, "final": 0.1},
                "run": {
                    "tokens": self.steps * self.batch * (task.length + 1),
                    "batch": self.batch,
                    "seed": self.seed,
                    "precision": "fp32",
                    "validation_sequences": 512,
                    "log_every": 25,
                },
            },
            "lab",
        )
