"""What the reports share: hashes of data, and tables and pictures added in one way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from loopscale.figures.style import Panel, Picture, scientific
from loopscale.files import checksum
from loopscale.fit import Observations
from loopscale.quantities import format_count
from loopscale.report import Report
from loopscale.tables import Table


def digest(observations: Observations) -> str:
    """Return a hash of the observed numbers, independent of the file format."""
    p = observations.points
    columns = [p.active, p.tokens, p.recurrence, p.experts, observations.loss]
    return hashlib.sha256(np.stack(columns).tobytes()).hexdigest()


def file_facts(path: str | Path | None) -> dict[str, str]:
    """Return a file's name and SHA-256 for the provenance table; nothing without a file."""
    if path is None:
        return {}
    return {"file": str(path), "file_sha256": checksum(Path(path))}


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
            return scientific(cell)
        return format_count(cell) if abs(cell) >= 1e5 else f"{cell:.4g}"
    return str(cell)
