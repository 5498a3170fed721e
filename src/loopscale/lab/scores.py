"""Scores of a model on a task, by the number of passes at test time and by position.

Shapes: B problems, T tokens, R passes, A positions that have an answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loopscale.core.errors import InputError
from loopscale.core.numerics import wilson_interval
from loopscale.model import Exit, LoopedMoEForCausalLM
from loopscale.train.data.batches import IGNORED
from loopscale.train.data.labels import fixed_problems
from loopscale.train.data.mixture import Mixture
from loopscale.train.data.puzzles import Facts
from loopscale.train.data.tasks import Rows, Split, Task

AT_CHANCE = "AT_CHANCE"
"""A score that a constant answer would have too: nothing was learnt, and the score says nothing about the model."""
LEARNT, PARTLY = "learnt", "partly learnt"
LEARNT_FROM = 0.8
"""The way from chance to all right at which a task counts as learnt."""


def status(share: float, count: int, chance: float) -> str:
    """Return whether a task was learnt, partly learnt, or is at chance: its 99% interval holds the chance level."""
    if wilson_interval(share, count, 0.99)[0] <= chance:
        return AT_CHANCE
    return LEARNT if (share - chance) / (1 - chance) >= LEARNT_FROM else PARTLY


@dataclass(frozen=True)
class Scores:
    """The share of problems that are right after each pass, from the first."""

    task: Task
    split: str
    count: int
    """Problems."""
    solved_R: NDArray[np.float64]
    right_RA: NDArray[np.float64]
    """By position."""
    loss_R: NDArray[np.float64]
    """Nats per answer."""

    @property
    def most(self) -> int:
        """The most passes that were scored."""
        return len(self.solved_R)

    def at(self, recurrence: int) -> float:
        """Return the share of problems solved at a test-time R."""
        return float(self.solved_R[recurrence - 1])

    def status(self, recurrence: int) -> str:
        """Return whether the task is learnt at a test-time R."""
        return status(self.at(recurrence), self.count, self.task.chance)

    def bits(self, recurrence: int) -> float:
        """Return the bits about the answers that the model knows beyond a uniform guess."""
        symbols = math.log2(len(self.task.words))
        learnt = symbols - float(self.loss_R[recurrence - 1]) / math.log(2)
        return max(0.0, learnt) * self.count * len(self.task.asked)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: ``accuracy`` by test-time R, and by position."""
        return {
            "task": self.task.name,
            "difficulty": self.task.difficulty,
            "split": self.split,
            "problems": self.count,
            "chance": round(self.task.chance, 4),
            "accuracy": {str(R): round(float(share), 4) for R, share in enumerate(self.solved_R, 1)},
            "by_position": {
                str(R): [round(float(share), 4) for share in shares] for R, shares in enumerate(self.right_RA, 1)
            },
            "loss": {str(R): round(float(loss), 4) for R, loss in enumerate(self.loss_R, 1)},
        }


def score(
    model: LoopedMoEForCausalLM, task: Task, most: int, *, count: int = 1024, split: Split = "validation"
) -> Scores:
    """Score a model at every R from 1 to ``most``, on fixed problems of a split; facts are asked for all at once."""
    if isinstance(task, Mixture):
        raise InputError("the task 'mixture' has a score for each part; `loopscale lab downstream` shows them")
    of_split = task.longer if split == "longer" and task.longer is not None else task
    if isinstance(task, Facts):
        ids_BT = task.facts(np.arange(task.difficulty))
        answers_BT = task.solve(ids_BT)
    else:
        ids_BT, answers_BT = fixed_problems(task, count, split)
    predicted_RBT, loss_R = answers_by_pass(model, ids_BT, answers_BT, most)
    asked = of_split.asked
    right_RBA = (predicted_RBT == answers_BT)[:, :, asked]
    solved_RB = right_RBA[:, :, -1] if of_split.scored == "last" else right_RBA.all(axis=2)
    return Scores(of_split, split, len(ids_BT), solved_RB.mean(axis=1), right_RBA.mean(axis=1), loss_R)


@dataclass(frozen=True)
class ExitScores:
    """Scores of a model whose tokens leave the loop when they are done."""

    solved: float
    right_A: NDArray[np.float64]
    """The share that is right, by position."""
    passes_A: NDArray[np.float64]
    """Mean passes used, by position."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "accuracy": round(self.solved, 4),
            "by_position": [round(float(share), 4) for share in self.right_A],
            "passes_by_position": [round(float(passes), 2) for passes in self.passes_A],
            "mean_passes": round(float(self.passes_A.mean()), 2),
        }


@torch.no_grad()
def score_exit(model: LoopedMoEForCausalLM, task: Task, exit_: Exit, most: int, *, count: int = 1024) -> ExitScores:
    """Score a model with early exit, on the problems of ``score``: harder positions may take more passes."""
    model.eval()  # type: ignore[no-untyped-call]
    ids_BT, answers_BT = fixed_problems(task, count, "validation")
    out = model(torch.from_numpy(ids_BT).to(model.device), recurrence=most, exit=exit_, use_cache=False)
    predicted_BT = out.logits.argmax(-1).cpu().numpy()
    right_A = (predicted_BT == answers_BT)[:, task.asked].mean(axis=0)
    passes_A = out.passes.double().mean(dim=0).cpu().numpy()[task.asked]
    return ExitScores(float(task.check(ids_BT, predicted_BT).mean()), right_A, passes_A)


@torch.no_grad()
def answers_by_pass(
    model: LoopedMoEForCausalLM, ids_BT: Rows, answers_BT: Rows, most: int, *, batch: int = 4096
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return a model's predictions by pass and position (R, B, T), and the mean loss of its answers (R,)."""
    was_training = model.training
    model.eval()  # type: ignore[no-untyped-call]
    answers: list[NDArray[np.int64]] = []
    loss_R = np.zeros(most)
    for first in range(0, len(ids_BT), batch):
        ids = torch.from_numpy(ids_BT[first : first + batch]).to(model.device)
        labels = torch.from_numpy(answers_BT[first : first + batch]).to(model.device).flatten()
        passes = _pass_logits(model, ids, most)
        answers.append(np.stack([logits.argmax(-1).cpu().numpy() for logits in passes]))
        for index, logits in enumerate(passes):
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1).float(), labels, ignore_index=IGNORED, reduction="sum"
            )
            loss_R[index] += float(loss)
    model.train(was_training)
    return np.concatenate(answers, axis=1), loss_R / np.count_nonzero(answers_BT != IGNORED)


def _pass_logits(model: LoopedMoEForCausalLM, ids: torch.Tensor, most: int) -> tuple[torch.Tensor, ...]:
    """Return the logits after each pass: from one forward, unless a pass depends on how many there will be."""
    if model.config.residual_scale == "none":
        passes: tuple[torch.Tensor, ...] = model(ids, recurrence=most, output_passes=True, use_cache=False).pass_logits
        return passes
    return tuple(model(ids, recurrence=R, use_cache=False).logits for R in range(1, most + 1))
