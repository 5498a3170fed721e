"""Ratios, side by side: both sides run in turn in one process, and the spread is shown."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


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


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
