"""Drawing many pictures at once, and the paper's figures put together from them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loopscale.core.errors import InputError
from loopscale.core.tables import Table
from loopscale.figures.gallery import GALLERY, MEASURED
from loopscale.figures.pictures import Panel, Picture
from loopscale.figures.sources import Sources
from loopscale.figures.style import STYLES, Style

LEAST_PARALLEL = 4
"""With fewer pictures, starting a second process takes longer than it saves."""


@dataclass(frozen=True)
class DrawingTask:
    """What to draw from, where to, and in which formats."""

    sources: Sources
    folder: Path
    formats: Sequence[str]
    style: Style = STYLES["note"]

    def draw(self, name: str) -> str | None:
        """Draw one picture; return why not, where its source is missing."""
        try:
            note = "" if name in MEASURED else f"Law: {self.sources.law.name}."
            picture = GALLERY[name](self.sources) if name in GALLERY else paper_figure(name, self.sources)
            picture.save(self.folder, self.formats, note, self.style)
        except InputError as error:
            return str(error)
        return None


def draw_all(
    task: DrawingTask, names: Sequence[str], progress: Callable[[int, int], None] | None = None
) -> dict[str, str]:
    """Draw the named pictures; return those left out, each with the reason."""
    left_out: dict[str, str] = {}
    for done, (name, reason) in enumerate(_drawn(task, names), 1):
        if reason is not None:
            left_out[name] = reason
        if progress is not None:
            progress(done, len(names))
    return left_out


def _drawn(task: DrawingTask, names: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, 4)
    if workers < 2 or len(names) < LEAST_PARALLEL:
        yield from ((name, task.draw(name)) for name in names)
        return
    task.sources.prepare()
    context = multiprocessing.get_context("fork")  # passes the task on without pickling it
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_keep_task, initargs=(task,)) as pool:
        yield from zip(names, pool.map(_draw, names), strict=True)


_worker_tasks: list[DrawingTask] = []
"""The task of this worker process."""


def _keep_task(task: DrawingTask) -> None:
    _worker_tasks.append(task)


def _draw(name: str) -> str | None:
    return _worker_tasks[-1].draw(name)


PAPER_FIGURES: dict[str, tuple[tuple[str, str, int | None], ...]] = {
    "figure-1": (("a", "schematic", None), ("b", "loss-by-experts", None), ("c", "bounded-gain", None)),
    "figure-2": (("a", "gain-by-mapping", 0), ("b", "loss-by-mapping", 0)),
    "figure-3": (("a", "gain-by-sparsity", None), ("b", "loss-by-mapping", -1)),
    "figure-4": (
        ("a", "multiplier", None), ("b", "asymptote", None), ("c", "isoflop-size", 0), ("d", "isoflop-size", -1),
    ),
    "figure-5": (("a", "best-recurrence", None), ("b", "isoflop-recurrence", None), ("c", "recurrence-map", None)),
    "figure-6": (("a", "best-experts", None), ("b", "experts-map", None), ("c", "joint-optimum", None)),
    "figure-7": (("a", "downstream", 0), ("b", "downstream", 1), ("c", "downstream", 2), ("d", "downstream", 3)),
}  # fmt: skip
"""The paper's figures by number: the letter of a part, the picture it is of, and which panel, or None for all."""


def paper_figure(number: str, sources: Sources) -> Picture:
    """Return a figure of the paper with its parts lettered; a panel that the sources do not have is left out."""
    panels: list[Panel] = []
    captions: dict[str, list[str]] = {}
    for letter, name, index in PAPER_FIGURES[number]:
        picture = GALLERY[name](sources)
        chosen = picture.panels if index is None else picture.panels[index:][:1]
        panels += [
            Panel(panel.table, partial(_lettered, draw=panel.draw, letter=letter), f"{letter}-{panel.name}".strip("-"))
            for panel in chosen
        ]
        if chosen:
            captions.setdefault(picture.caption, []).append(letter)
    together = " ".join(f"({', '.join(letters)}) {caption}" for caption, letters in captions.items())
    return Picture(number, together, tuple(panels))


def _lettered(table: Table, axes: Any | None = None, *, draw: Callable[..., Any], letter: str) -> Any:
    from matplotlib.text import Text

    axes = draw(table, axes)
    title = axes.get_title(loc="left")
    for text in axes.get_children():
        if isinstance(text, Text) and text.get_text() == title:
            text.set_text(f"({letter}) {title}")  # set_title would undo its size
    return axes
