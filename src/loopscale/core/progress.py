"""Progress on standard error: bars on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loopscale.core.quantities import format_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

LINE_EVERY = 10.0
"""Seconds between two lines where there is no terminal; shorter work prints none."""


def progress_console() -> Console:
    """Return standard error; ``NO_COLOR`` removes every style."""
    from rich.console import Console  # 40 ms with the bars, which only work that shows its progress should cost

    return Console(stderr=True, color_system=None) if os.environ.get("NO_COLOR") else Console(stderr=True)


def bars(*columns: ProgressColumn | str, shown: bool = True, transient: bool = True) -> Progress:
    """Return bars that are drawn on a terminal and nowhere else; none if they are not to be ``shown``."""
    from rich.progress import Progress

    out = progress_console()
    return Progress(*columns, console=out, transient=transient, disable=not (shown and out.is_terminal))


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Show progress while the block runs, which calls the function it is given with the number done and the total."""
    started = time.monotonic()
    if not progress_console().is_terminal:
        line = occasional_lines()
        yield lambda done, of: line(f"{what}: {done} of {of}{time_left(started, done, of)}")
        return
    with bars() as bar:
        task = bar.add_task(_escaped(what), total=total)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def occasional_lines(shown: bool = True) -> Callable[[str], None]:
    """Return a function that prints a line if the last one is long ago, and none on a terminal, which has bars."""
    out = progress_console()
    printed_at = time.monotonic()

    def line(text: str) -> None:
        nonlocal printed_at
        if shown and not out.is_terminal and time.monotonic() - printed_at >= LINE_EVERY:
            printed_at = time.monotonic()
            out.print(text, highlight=False, markup=False, soft_wrap=True)

    return line


def time_left(started: float, done: float, total: float) -> str:
    """Return the time left at the pace since ``started``, as the end of a line; nothing before and after the work."""
    if not 0 < done < total:
        return ""
    return f", {format_duration((time.monotonic() - started) * (total - done) / done)} left"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


class ResultBar:
    """Shows which result is being computed, and prints a line for each finished one where there is no terminal."""

    def __init__(self, results: int) -> None:
        self._out, self._bars = progress_console(), bars()
        self._task = self._bars.add_task("", total=results)
        self._started, self._done, self._total = time.monotonic(), 0, results
        self._current = ""

    def now(self, what: str, done: int = 0) -> None:
        """Show what is being computed, and how many requests of it are finished."""
        self._current = what
        self._bars.update(self._task, description=f"{_escaped(what)}: {done:,}")

    def finished(self, results: int = 1) -> None:
        """Count finished results."""
        self._bars.advance(self._task, results)
        if not self._current:
            self._total -= results  # known before, so they say nothing about the pace
            return
        self._done += results
        if not self._out.is_terminal:
            left = time_left(self._started, self._done, self._total)
            self._out.print(f"{self._current}: done{left}", highlight=False, markup=False, soft_wrap=True)
        self._current = ""

    def __enter__(self) -> ResultBar:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()
