"""Show a live line: loss, throughput, unbalanced experts, the forecast final loss, the time left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from loopscale.core.errors import InputError
from loopscale.core.progress import bars, occasional_lines
from loopscale.core.quantities import format_duration
from loopscale.fitting.data.run_logs import read_log
from loopscale.fitting.running import final_loss
from loopscale.train.callbacks.callback import Callback

UNBALANCED = 2.0
"""The busiest expert is mentioned when its load is more than this many times the mean."""
FORECAST_EVERY = 0.02
"""Share of the run after which its final loss is forecast again."""


class ProgressLine(Callback):
    """The live line of a trainer with ``progress``, on the first process."""

    in_every_run = True
    priority = -20

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._ending = ""
        self._forecast_at = 0
        self._line: Callable[[str], None] = lambda line: None

    def start(self) -> None:
        trainer = self.trainer
        if not trainer.progress or trainer.process.rank:
            return
        self._bars = bars(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            transient=False,
        )
        self._line, self._title = occasional_lines(True), trainer.out.name or "training"
        self._task = self._bars.add_task(self._title, total=trainer.config.steps, completed=trainer.step, numbers="")
        self._bars.start()

    def report(self, row: dict[str, Any]) -> None:
        if self._bars is None:
            return
        config = self.trainer.config
        if row["step"] - self._forecast_at >= config.steps * FORECAST_EVERY:
            self._ending, self._forecast_at = self._final_loss(), row["step"]
        self._bars.update(self._task, numbers=describe(row) + self._ending)
        left = (config.steps - row["step"]) * config.step_tokens / row["tokens_per_second"]
        numbers = f"{describe(row)}{self._ending}"
        self._line(f"{self._title}: step {row['step']:,} of {config.steps:,}, {numbers}, {format_duration(left)} left")
        if "alarm" in row:
            self._bars.console.print(f"step {row['step']:,}: {row['alarm']}", markup=False, highlight=False)

    def _final_loss(self) -> str:
        """Return the loss that the run will end with, by its log so far; empty while the log is too short."""
        try:
            forecast = final_loss(read_log(self.trainer.out))
        except InputError:
            return ""
        return f", ends at {forecast.final:.3f} ({forecast.low:.3f}–{forecast.high:.3f})"

    def after_step(self) -> None:
        if self._bars is not None:
            self._bars.update(self._task, completed=self.trainer.step)

    def stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def describe(row: dict[str, Any]) -> str:
    """Return the numbers of a row in one short line."""
    parts = [f"loss {row['loss']:.4f}", f"{row['tokens_per_second'] / 1e3:.1f}k tokens/s"]
    if row.get("expert_load", 1.0) > UNBALANCED:
        parts.append(f"busiest expert {row['expert_load']:.1f}x the mean")
    if row.get("dropped"):
        parts.append(f"dropped {row['dropped']:.1%}")
    return ", ".join(parts)
