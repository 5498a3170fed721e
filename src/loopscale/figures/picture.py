"""A picture: panels, each drawn from a tidy table that is saved beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopscale.figures.style import COLUMN, FORMATS, new_figure, save
from loopscale.tables import Table

Draw = Callable[[Table, Any], Any]


@dataclass(frozen=True)
class Panel:
    """One set of axes: the table, and what draws it."""

    table: Table
    draw: Draw
    name: str = ""
    """What tells this panel's table from the others of the picture."""


@dataclass(frozen=True)
class Picture:
    """Panels under one another, in the width of a paper column."""

    name: str
    caption: str
    panels: tuple[Panel, ...]
    height: float = 2.6
    """Inches for each panel."""

    def figure(self, columns: int = 1) -> Any:
        """Return the drawn matplotlib figure, ``columns`` panels side by side."""
        figure, places = new_figure(-(-len(self.panels) // columns), columns, COLUMN, self.height)
        for panel, axes in zip(self.panels, places, strict=False):
            panel.draw(panel.table, axes)
        for unused in places[len(self.panels) :]:
            unused.remove()
        return figure

    def save(self, folder: str | Path, formats: Sequence[str] = FORMATS) -> list[Path]:
        """Write the picture in each format, and each panel's table as CSV; return what was written."""
        figure, where = self.figure(), Path(folder)
        written = []
        for kind in formats:
            written.append(where / f"{self.name}.{kind}")
            save(figure, written[-1])
        for panel in self.panels:
            ending = f"-{panel.name}" if panel.name else ""
            written.append(where / f"{self.name}{ending}.csv")
            panel.table.save(written[-1])
        return written
