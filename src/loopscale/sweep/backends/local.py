"""Workers as processes of this machine, each on a core of its own with one thread.

For small models that beats one process with several threads, which wait for each other more than they compute.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.context import ForkServerProcess

from loopscale.errors import InputError
from loopscale.sweep.backends import check_cores, open_nursery, usable_cores
from loopscale.sweep.worker import Job, work


class LocalWorker:
    """A process."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    def alive(self) -> bool:
        """Tell whether it runs."""
        return self._process.is_alive()

    def well(self) -> bool:
        """Tell whether it ended by itself."""
        return self._process.exitcode == 0

    def kill(self) -> None:
        """End it now."""
        self._process.kill()


class Local:
    """Processes from the nursery, where torch is loaded already: a new worker is there at once."""

    def __init__(self, cores: Sequence[int] | None = None) -> None:
        self.cores = list(cores or usable_cores())
        check_cores(self.cores)
        self._context = open_nursery()

    def start(self, job: Job, place: int) -> LocalWorker:
        """Start a worker on the place's core."""
        pinned = replace(job, core=self.cores[place % len(self.cores)])
        process = self._context.Process(target=_main, args=(pinned,), daemon=True)
        process.start()
        return LocalWorker(process)

    def close(self) -> None:
        """Nothing is left behind: the process that workers come from ends with this one."""


def _main(job: Job) -> None:
    # Ctrl-C reaches every process of the terminal; the parent passes the wish on, and a checkpoint is left first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    try:
        work(job, parent.is_alive)
    except InputError as error:
        print(f"worker: {error}", file=sys.stderr)
        sys.exit(2)
