"""The base of everything that a run does beside its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from loopscale.model import LoopedMoEConfig
    from loopscale.train.config import TrainConfig
    from loopscale.train.step import Gradients
    from loopscale.train.trainer import Trainer


class Callback:
    """Something that a run does beside its steps: measure, report, watch, save.

    The loop calls these methods, on every process, in this order::

        start
            skip_update → (update of the weights, after_update) → measure, report (when a row is due) → after_step
        stop

    ``before_save`` comes before every checkpoint, and ``summarise`` when ``summary.json`` is written. A callback that
    must remember something when a run resumes returns it from ``state_dict``. What changes the training must be a
    function of that state, the settings and the step: only then a resumed run equals one that was never stopped.
    """

    priority: ClassVar[int] = 0
    """Callbacks of a higher priority are called first."""
    in_every_run: ClassVar[bool] = False
    """Whether every run has this callback, with any settings. Callbacks of loopscale set it."""
    trainer: Trainer
    """The run of the callback; set before any other method is called."""

    @classmethod
    def for_run(cls, config: TrainConfig, model: LoopedMoEConfig) -> Self | None:
        """Return the callback of a run, or None if its settings do not ask for one; for callbacks of loopscale."""
        return cls() if cls.in_every_run else None

    def start(self) -> None:
        """Training starts or continues at ``trainer.step``."""

    def stop(self) -> None:
        """Training ends or pauses, also after an error."""

    def skip_update(self, gradients: Gradients) -> bool:
        """Return True, on every process, to leave the batch of this step out: the weights do not change."""
        return False

    def after_update(self, gradients: Gradients) -> None:
        """The weights were updated; ``trainer.step`` is still the step of this batch."""

    def measure(self, row: dict[str, Any], gradients: Gradients) -> None:
        """Add values to a row of metrics; ``trainer.step`` counts this step already."""

    def report(self, row: dict[str, Any]) -> None:
        """A row of metrics is complete: write or show it."""

    def after_step(self) -> None:
        """A step is done, with or without a row."""

    def before_save(self) -> None:
        """A checkpoint is about to be written."""

    def summarise(self, summary: dict[str, Any]) -> None:
        """Add values to the summary of a finished run."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this callback: plain values, for JSON."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state in a checkpoint; it is empty if the checkpoint has none."""
