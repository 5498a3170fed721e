"""Compare the tokens of a run with their checksums before it writes any result."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from loopscale.train.callbacks.callback import Callback

AT_ONCE = 64 * 2**20
"""Bytes of tokens that are read before the first step, in about a tenth of a second; more are read beside training."""


class DataCheck(Callback):
    """The tokens of this run: compared with their checksums and the vocabulary, for every run.

    A shard may change after it was written although its size and time stay, as a failing disk or ``cp -p`` do it. The
    first process reads it. No checkpoint and no summary is written before the comparison is done.
    """

    in_every_run = True
    priority = 200  # before a checkpoint is written by any other

    def __init__(self) -> None:
        self._checked: Future[None] | None = None

    def start(self) -> None:
        store = self.trainer.store
        if self._checked is not None or self.trainer.process.rank:
            return
        if store.stored_bytes <= AT_ONCE:
            store.verify()
            self._checked = Future()
            self._checked.set_result(None)
            return
        reader = ThreadPoolExecutor(1, "data-check")
        self._checked = reader.submit(store.verify)
        reader.shutdown(wait=False)

    def stop(self) -> None:
        """Wait here too: damaged tokens may be why training failed."""
        self._wait()

    def before_save(self) -> None:
        self._wait()

    def summarise(self, summary: dict[str, Any]) -> None:
        self._wait()

    def _wait(self) -> None:
        if self._checked is not None:
            self._checked.result()
