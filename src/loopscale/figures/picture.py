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
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, not again for each format
        written = []
        for kind in formats:
            written.append(where / f"{self.name}.{kind}")
            save(figure, written[-1])
        for ending, table in self.tables().items():
            written.append(where / f"{self.name}{ending}.csv")
            table.save(written[-1])
        return written

    def tables(self) -> dict[str, Table]:
        """Return the tables by what their file's name ends in; panels that share a table share its file."""
        shared = {id(panel.table) for panel in self.panels}
        return {f"-{panel.name}" if len(shared) > 1 else "": panel.table for panel in self.panels}
