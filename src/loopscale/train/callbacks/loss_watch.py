"""Watch the loss: skip the batches of spikes, and stop a run that diverges before its weights are lost."""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loopscale.core.errors import DivergenceError
from loopscale.core.files import write_json
from loopscale.train.callbacks.callback import Callback

if TYPE_CHECKING:
    from loopscale.train.step import Gradients

SMOOTH = 50
"""Steps that the loss is averaged over."""


class LossWatch(Callback):
    """Skips up to ``[run] skip_spikes`` batches, and stops a run by ``[run] divergence``."""

    in_every_run = True
    priority = 90

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=SMOOTH)
        self._lowest = math.inf
        self._skipped = 0
        self._unread: list[tuple[int, Tensor]] = []
        """Losses that are still on the device, with their steps."""

    def skip_update(self, gradients: Gradients) -> bool:
        trainer = self.trainer
        self._unread.append((trainer.step, gradients.loss))
        # Reading a loss makes the host wait for a GPU, so there it is done when a row of metrics is due.
        every_step = trainer.process.device.type == "cpu" or trainer.config.run.skip_spikes > 0
        return self._read_losses() if every_step or trainer.row_is_due else False

    def measure(self, row: dict[str, Any], gradients: Gradients) -> None:
        if self._skipped:
            row["skipped"] = self._skipped

    def before_save(self) -> None:
        self._read_losses()

    def state_dict(self) -> dict[str, Any]:
        lowest = None if math.isinf(self._lowest) else self._lowest  # JSON has no infinity
        return {"recent": list(self._recent), "lowest": lowest, "skipped": self._skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state; values that a damaged one lacks start anew."""
        recent, lowest, skipped = (state.get(name) for name in ("recent", "lowest", "skipped"))
        numbers = [value for value in recent if isinstance(value, float)] if isinstance(recent, list) else []
        self._recent = deque(numbers, maxlen=SMOOTH)
        self._lowest = lowest if isinstance(lowest, float) else math.inf
        self._skipped = skipped if isinstance(skipped, int) else 0
        self._unread.clear()

    def _read_losses(self) -> bool:
        """Read the losses that are still on the device; return whether the last is a spike whose batch is skipped."""
        if not self._unread:
            return False
        steps, losses = zip(*self._unread, strict=True)
        self._unread.clear()
        spiked = False
        for step, loss in zip(steps, torch.stack(losses).tolist(), strict=True):
            spiked = self._is_spike(loss)
            if spiked:
                self._skipped += 1
            else:
                self._check_divergence(step, loss)
        return spiked

    def _is_spike(self, loss: float) -> bool:
        run = self.trainer.config.run
        if self._skipped >= run.skip_spikes:
            return False
        high = len(self._recent) == SMOOTH and loss > fmean(self._recent) + run.spike
        return high or not math.isfinite(loss)

    def _check_divergence(self, step: int, loss: float) -> None:
        """Stop before the weights are corrupted if the loss is not finite, or has risen and stayed high."""
        self._recent.append(loss)
        mean = fmean(self._recent) if len(self._recent) == SMOOTH else math.inf
        self._lowest = min(self._lowest, mean)
        trainer, process = self.trainer, self.trainer.process
        limit = trainer.config.run.divergence
        if math.isfinite(loss) and (not limit or math.isinf(mean) or mean <= self._lowest + limit):
            return
        # Every process has its own rows of the batch.
        batch = trainer.out / ("bad-batch.json" if process.ranks == 1 else f"bad-batch-{process.rank}.json")
        ids = [part.ids.tolist() for part in trainer.parts(step)]
        write_json(batch, {"step": step, "loss": str(loss), "ids": ids})
        steps = trainer.checkpoints.steps()
        good = (
            f"the last good checkpoint is {trainer.checkpoints.path(steps[0])}"
            if steps
            else "no checkpoint was written yet"
        )
        what = "is not finite" if not math.isfinite(loss) else f"has climbed to {mean:.3f} from {self._lowest:.3f}"
        skipped = f"{self._skipped} batches were skipped before; " if self._skipped else ""
        raise DivergenceError(
            f"{trainer.out}: the loss {what} at step {step} ({loss:g}); {skipped}its batch is in {batch}; {good}; "
            "lower learning_rate or raise warmup_steps"
        )
