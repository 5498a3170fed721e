"""Pictures: panels with a caption, saved with the numbers drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopscale.core.tables import Table
from loopscale.figures.style import COLUMN, FORMATS, STYLES, Style, new_figure, save, typeset

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

    def figure(self, columns: int = 1, width: float = COLUMN) -> Any:
        """Return the drawn matplotlib figure, ``columns`` panels of one width side by side."""
        height = self.height * (width / COLUMN) ** 0.5
        figure, places = new_figure(-(-len(self.panels) // columns), columns, width, height)
        for panel, axes in zip(self.panels, places, strict=False):
            panel.draw(panel.table, axes)
        for unused in places[len(self.panels) :]:
            unused.remove()
        return figure

    def save(
        self, folder: str | Path, formats: Sequence[str] = FORMATS, note: str = "", style: Style = STYLES["note"]
    ) -> list[Path]:
        """Write the picture in each format, and each panel's table as CSV; return what was written.

        The caption, which states the budget, and ``note`` are drawn below the panels, as files are shared without the
        page around them; some styles leave them out. Where the style is wider than a column, panels are side by side.
        """
        columns = min(len(self.panels), 2) if style.width > 1.5 * COLUMN else 1
        figure, where = self.figure(columns, style.width / columns), Path(folder)
        if style.caption:
            lines = textwrap.wrap(f"{self.caption} {note}", 80, break_on_hyphens=False)
            width, height = figure.get_size_inches()
            figure.set_size_inches(width, height + 0.11 * len(lines))
            figure.supxlabel("\n".join(lines), fontsize=5.5, x=0.01, ha="left", color="0.35")
        else:
            typeset(figure, style)
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
