"""What reports share: facts about files, tables with readable values, and pictures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from loopscale.core.files import checksum
from loopscale.core.quantities import format_count, format_power
from loopscale.core.report import Report, without_folder
from loopscale.core.tables import Table
from loopscale.figures.pictures import Panel, Picture


def file_facts(path: str | Path | None) -> dict[str, str]:
    """Return a file's name and SHA-256 for the provenance table; nothing without a file."""
    if path is None:
        return {}
    return {"file": without_folder(str(path)), "file_sha256": checksum(Path(path))}


def add_table(report: Report, table: Table) -> None:
    """Add a table with its values as people write them."""
    rows = [[readable(cell) for cell in row.values()] for row in table.records()]
    report.table([name.replace("_", " ") for name in table.columns], rows)


def add_picture(report: Report, panels: Iterable[Panel], caption: str, height: float = 2.6) -> None:
    """Add panels under one caption; they stand side by side where the page is wide enough."""
    report.figure([Picture("", caption, (panel,), height).figure() for panel in panels], caption)


def readable(cell: Any) -> str:
    """Return a value as people write it: yes or no, 6.22e18, 413B, four digits otherwise."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        if cell != cell:
            return "–"
        if abs(cell) >= 1e15:
            return format_power(cell)
        return format_count(cell) if abs(cell) >= 1e5 else f"{cell:.4g}"
    return str(cell)
