"""A learning-rate range test: short training with a rate that rises until the loss does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loopscale.train.config import TrainConfig
from loopscale.train.optimizers import set_rate
from loopscale.train.step import apply, gradients, repeatable, seed_step
from loopscale.train.trainer import Trainer

STEPS = 100
LOWEST, HIGHEST = 1e-2, 1e2
"""Rates that are tried, as multiples of the file's; by the file's own rules for width and recurrence."""
SMOOTHING = 0.9
BROKEN = 1.1
"""The test ends where the smoothed loss is this many times its lowest: higher rates diverge."""
SAFETY = 3.0
"""The suggested rate is this much below the rate of the lowest smoothed loss, from which it soon rises."""


@dataclass(frozen=True)
class RateTest:
    """The losses of a range test, and the rate that they suggest."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    """Smoothed, as far as the test went."""
    suggested: float
    """A peak rate for ``[optimizer] learning_rate``: an order of magnitude, not an optimum."""
    ended: bool
    """Whether the loss rose before the end: otherwise higher rates may do."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"kind": "rate test", **asdict(self)}


def find_rate(config: TrainConfig, steps: int = STEPS, report: Callable[[int], None] = lambda step: None) -> RateTest:
    """Train ``steps`` short steps in a temporary folder, each at a higher rate than the last."""
    quick = config.changed(run={"tokens": steps * config.step_tokens, "checkpoint_every": 0, "track": (), "law": None})
    factors = np.geomspace(LOWEST, HIGHEST, steps)
    losses: list[float] = []
    smoothed = 0.0
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(quick, Path(folder) / "rates")
        trainer.model.train()
        with repeatable(trainer.deterministic):
            for step, factor in enumerate(factors):
                set_rate(trainer.optimizer, float(factor))
                seed_step(quick.run.seed, step)
                result = gradients(trainer.model, trainer.parts(step), trainer.process, quick.data.document_mask)
                apply(trainer.model, trainer.optimizer, trainer.process, quick.optimizer.clip)
                smoothed = SMOOTHING * smoothed + (1 - SMOOTHING) * float(result.loss)
                losses.append(smoothed / (1 - SMOOTHING ** (step + 1)))
                report(step + 1)
                if not np.isfinite(losses[-1]) or losses[-1] > BROKEN * min(losses):
                    break
        trainer.process.close()
    rates = tuple(float(rate) for rate in config.optimizer.learning_rate * factors[: len(losses)])
    lowest = int(np.nanargmin(losses))
    return RateTest(rates, tuple(losses), rates[lowest] / SAFETY, lowest < 0.95 * len(losses))
