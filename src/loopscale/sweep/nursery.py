"""The process that local workers come from: it loads torch once, computes nothing, and a worker is a fork of it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def open_nursery() -> ForkServerContext:
    """Start the process, if it is not there yet, and go on while it loads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["loopscale.sweep.worker"])
    with _one_thread():
        forkserver.ensure_running()
    return context


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that are started in the block compute with one thread; libraries look at this when they load."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
