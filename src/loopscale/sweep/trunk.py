"""One run of a sweep: a trunk trained once, and at each D a branch that cools down, is validated and thrown away.

Up to where it cools down, a run of D tokens is the same as any longer one, because the batch, the learning rate and
whatever is random are functions of the seed and the step. So each branch ends where a run of D tokens alone would have,
bit for bit, at the price of its cooldown.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from loopscale.train.config import TrainConfig
from loopscale.train.schedule import shared_steps
from loopscale.train.trainer import Trainer

Record = Callable[[int, float, dict[str, Any]], None]
"""Takes the tokens, the loss and the facts of a finished point."""


def executed_steps(config: TrainConfig, points: Iterable[int]) -> int:
    """Return the steps that a trunk and its branches take in all."""
    ends = [tokens // config.step_tokens for tokens in points]
    starts = [shared_steps(config.schedule, end) for end in ends]
    return max(starts) + sum(end - start for end, start in zip(ends, starts, strict=True))


class Trunk:
    """A run in its folder: ``checkpoints`` of the trunk, and a folder for each point."""

    def __init__(self, config: TrainConfig, points: Iterable[int], folder: Path, keep_models: bool) -> None:
        self.points, self.folder, self.keep_models = sorted(points), folder, keep_models
        self.trainer = Trainer(config, folder)
        self._cooled = 0
        """Steps of the branches that are done."""

    @property
    def steps_done(self) -> int:
        """How many steps of trunk and branches are behind."""
        return self.trainer.step + self._cooled

    def run(self, done: Iterable[int], record: Record, stop: Callable[[], bool]) -> bool:
        """Do the points that are not ``done``; tell whether all are, or ``stop`` came first."""
        pending = [tokens for tokens in self.points if tokens not in set(done)]
        self._cooled = sum(self._end(each) - self._start(each) for each in self.points if each not in pending)
        if pending:
            self.trainer.resume(latest=self._start(pending[0]))
        for tokens in pending:
            if not self._to(self._start(tokens), stop):
                return False
            facts = self._branch(tokens, stop)
            if facts is None:
                return False
            record(tokens, facts["validation_loss"], facts)
            shutil.rmtree(self._folder(tokens) / "checkpoints", ignore_errors=True)
            self._cooled += self._end(tokens) - self._start(tokens)
        return True

    def _to(self, step: int, stop: Callable[[], bool]) -> bool:
        """Train the trunk up to a step and leave a checkpoint there, or where it was stopped."""
        begun = self.trainer.step
        self.trainer.train(until=step, stop=stop)
        if self.trainer.step > begun:
            self.trainer.save()
        return self.trainer.step == step

    def _branch(self, tokens: int, stop: Callable[[], bool]) -> dict[str, Any] | None:
        """Cool down to a point; return what it is, or None when stopped before."""
        began = time.perf_counter()
        with self.trainer.branch(tokens, self._folder(tokens)):
            self.trainer.resume()
            self.trainer.train(stop=stop)
            if self.trainer.step < self._end(tokens):
                self.trainer.save()
                return None
            return self._facts() | {"cooldown_seconds": time.perf_counter() - began}

    def _facts(self) -> dict[str, Any]:
        """Return the observation of this moment, and leave it in the point's folder."""
        trainer = self.trainer
        config, model = trainer.config, trainer.model_config
        real = model.to_architecture().real_train_flops_per_token(context=config.data.context)
        return trainer.finish(
            model=self.keep_models,
            real_training_flops=float(real) * (trainer.step * config.step_tokens),
            width=model.hidden_size,
            layers=model.prelude_layers + model.loop_layers + model.coda_layers,
            learning_rate=config.optimizer.learning_rate,
        )

    def _folder(self, tokens: int) -> Path:
        return self.folder / f"D{tokens}"

    def _end(self, tokens: int) -> int:
        return tokens // self.trainer.config.step_tokens

    def _start(self, tokens: int) -> int:
        return shared_steps(self.trainer.config.schedule, self._end(tokens))
