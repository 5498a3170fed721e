"""One run of a sweep in its folder: the steps that its points share, and a branch for each point."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from loopscale.sweep.objects import copy_point
from loopscale.train.config import TrainConfig
from loopscale.train.schedule import shared_steps
from loopscale.train.trainer import Trainer

Record = Callable[[int, float, dict[str, Any]], None]
"""Takes the tokens, the loss and the facts of a finished point."""


class Trunk:
    """A run in its folder: ``checkpoints`` of the trunk, and a folder for each point."""

    def __init__(
        self,
        config: TrainConfig,
        points: Iterable[int],
        folder: Path,
        keep_models: bool,
        objects: str | None = None,
        **facts: Any,
    ) -> None:
        self.points, self.folder, self.keep_models, self.facts = sorted(points), folder, keep_models, facts
        self.objects = objects
        """A folder or URL that finished points are copied to."""
        self.trainer = Trainer(config, folder)
        self._branch_steps = 0
        """Steps of the branches that are finished."""

    @property
    def steps_done(self) -> int:
        """Steps of trunk and branches that are done."""
        return self.trainer.step + self._branch_steps

    def run(self, done: Iterable[int], record: Record, stop: Callable[[], bool]) -> bool:
        """Train the points that are not ``done``; return False if ``stop`` ended it before the last one."""
        pending = [tokens for tokens in self.points if tokens not in set(done)]
        self._branch_steps = sum(self._end(tokens) - self._start(tokens) for tokens in set(self.points) - set(pending))
        if pending:
            self.trainer.resume(latest=self._start(pending[0]))
        for tokens in pending:
            if not self._train_to(self._start(tokens), stop):
                return False
            facts = self._branch(tokens, stop)
            if facts is None:
                return False
            if self.objects is not None and self.trainer.process.rank == 0:
                copy_point(self._folder(tokens), self.objects)  # before it counts as observed
            record(tokens, facts["validation_loss"], facts)
            if self.trainer.process.rank == 0:
                shutil.rmtree(self._folder(tokens) / "checkpoints", ignore_errors=True)
            self._branch_steps += self._end(tokens) - self._start(tokens)
        return True

    def _train_to(self, step: int, stop: Callable[[], bool]) -> bool:
        """Train the trunk up to a step and save a checkpoint there, or where it was stopped."""
        first = self.trainer.step
        self.trainer.train(until=step, stop=stop)
        if self.trainer.step > first:
            self.trainer.save()
        return self.trainer.step == step

    def _branch(self, tokens: int, stop: Callable[[], bool]) -> dict[str, Any] | None:
        """Train the cooldown of a point; return its summary, or None when stopped before the end."""
        with self.trainer.branch(tokens, self._folder(tokens)):
            self.trainer.resume()
            self.trainer.train(stop=stop)
            if self.trainer.step < self._end(tokens):
                self.trainer.save()
                return None
            return self._summary()

    def _summary(self) -> dict[str, Any]:
        """Write the summary of the point that was just trained, and return it."""
        trainer = self.trainer
        config, model = trainer.config, trainer.model_config
        return trainer.finish(
            model=self.keep_models,
            width=model.hidden_size,
            layers=model.prelude_layers + model.loop_layers + model.coda_layers,
            learning_rate=config.optimizer.learning_rate,
            **self.facts,
        )

    def _folder(self, tokens: int) -> Path:
        return self.folder / f"D{tokens}"

    def _end(self, tokens: int) -> int:
        return tokens // self.trainer.config.step_tokens

    def _start(self, tokens: int) -> int:
        return shared_steps(self.trainer.config.schedule, self._end(tokens))
