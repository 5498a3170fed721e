"""Ratios, side by side: both sides run in turn in one process, and the spread is shown; and the peak of memory."""

from __future__ import annotations

import re
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ratio:
    """How many times longer ``peer`` took than ``ours``, over interleaved rounds."""

    name: str
    ours: list[float]
    peer: list[float]

    @property
    def median(self) -> float:
        """The median of the rounds' own ratios: drift of the machine cancels within a round."""
        return statistics.median(p / o for o, p in zip(self.ours, self.peer, strict=True))

    def __str__(self) -> str:
        each = sorted(p / o for o, p in zip(self.ours, self.peer, strict=True))
        ours, peer = statistics.median(self.ours), statistics.median(self.peer)
        return (
            f"{self.name}: {self.median:.2f}x (rounds {each[0]:.2f}–{each[-1]:.2f}x, n={len(each)}; "
            f"ours {_time(ours)}, peer {_time(peer)})"
        )


def compare(
    name: str,
    ours: Callable[[], object],
    peer: Callable[[], object],
    rounds: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> Ratio:
    """Time both, one after the other, ``rounds`` times after a warm-up."""
    times: tuple[list[float], list[float]] = ([], [])
    ours(), peer()
    for _ in range(rounds):
        for side, work in zip(times, (ours, peer), strict=True):
            start = clock()
            work()
            side.append(clock() - start)
    return Ratio(name, *times)


def peak_memory() -> int:
    """Return the most bytes that this process has held.

    On Linux ``ru_maxrss`` starts at what the parent held when it started the process, which hides smaller peaks.
    """
    status = Path("/proc/self/status")
    if status.exists() and (peak := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return 1024 * int(peak[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
