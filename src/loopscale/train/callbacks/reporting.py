"""Write the rows of metrics: ``metrics.jsonl``, and the trackers of ``[run] track``."""

from __future__ import annotations

from typing import Any

from loopscale.train.callbacks.callback import Callback
from loopscale.train.metrics import Sink, open_sinks


class Reporting(Callback):
    """Sends every row to the sinks of the run, from the first process."""

    in_every_run = True
    priority = -10  # after other callbacks have looked at the row

    def __init__(self) -> None:
        self._sinks: list[Sink] = []

    def start(self) -> None:
        trainer = self.trainer
        if trainer.process.rank == 0:
            self._sinks = open_sinks(trainer.out, trainer.step, trainer.config.run.track, trainer.config.to_dict())

    def report(self, row: dict[str, Any]) -> None:
        for sink in self._sinks:
            sink.write(row)

    def before_save(self) -> None:
        """A checkpoint never survives the rows before it."""
        for sink in self._sinks:
            sink.sync()

    def stop(self) -> None:
        sinks, self._sinks = self._sinks, []
        for sink in sinks:
            sink.close()
