"""Draw many pictures, in as many processes as there are cores to use."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from loopscale.errors import InputError
from loopscale.figures.gallery import GALLERY
from loopscale.figures.sources import Sources

PAYS = 4
"""Pictures from which a second process pays for its start."""


@dataclass(frozen=True)
class Task:
    """What to draw from, where to, and in which formats."""

    sources: Sources
    folder: Path
    formats: Sequence[str]

    def draw(self, name: str) -> str | None:
        """Draw one picture; return why not, where its source is missing."""
        try:
            GALLERY[name](self.sources).save(self.folder, self.formats)
        except InputError as error:
            return str(error)
        return None


def draw_all(task: Task, names: Sequence[str], progress: Callable[[int, int], None] | None = None) -> dict[str, str]:
    """Draw the named pictures; return those left out, each with the reason."""
    left_out: dict[str, str] = {}
    for done, (name, reason) in enumerate(_drawn(task, names), 1):
        if reason is not None:
            left_out[name] = reason
        if progress is not None:
            progress(done, len(names))
    return left_out


def _drawn(task: Task, names: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, 4)
    if workers < 2 or len(names) < PAYS:
        yield from ((name, task.draw(name)) for name in names)
        return
    task.sources.prepare()
    context = multiprocessing.get_context("fork")  # which hands the task over as it is
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_take, initargs=(task,)) as pool:
        yield from zip(names, pool.map(_draw, names), strict=True)


_taken: list[Task] = []
"""The task of this worker process."""


def _take(task: Task) -> None:
    _taken.append(task)


def _draw(name: str) -> str | None:
    return _taken[-1].draw(name)
