"""Run benchmarks during training: ``[run] eval_tasks``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loopscale.core.errors import InputError
from loopscale.train.callbacks.callback import Callback
from loopscale.train.step import repeatable

if TYPE_CHECKING:
    from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
    from loopscale.train.config import TrainConfig
    from loopscale.train.data.token_store import TokenStore
    from loopscale.train.step import Gradients


class Evaluation(Callback):
    """Scores of the model in training, by name, every ``[run] eval_every`` steps and at the end."""

    priority = 50

    def __init__(self, evaluate: Callable[[LoopedMoEForCausalLM, TokenStore], dict[str, float]]) -> None:
        self._evaluate = evaluate

    @classmethod
    def for_run(cls, config: TrainConfig, model: LoopedMoEConfig) -> None:
        """Refuse tasks that nothing evaluates: benchmarks are in a package that training does not import."""
        if config.run.eval_tasks is not None:
            raise InputError(
                "[run]: field 'eval_tasks' is for `loopscale train`",
                remedy="in Python give callbacks=[Evaluation(loopscale.evaluate.while_training(config))], and evaluate "
                "the models of a sweep with `loopscale eval`",
            )

    def measure(self, row: dict[str, Any], gradients: Gradients) -> None:
        trainer = self.trainer
        if not (trainer.is_due(trainer.config.run.eval_every) or trainer.step == trainer.config.steps):
            return
        with repeatable(trainer.deterministic):
            scores = self._evaluate(trainer.model, trainer.store)
        row |= {f"eval/{name}": score for name, score in scores.items()}
        trainer.model.train()
