"""What the reports share: hashes of data, and tables of numbers as text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from loopscale.figures.style import Panel, Picture
from loopscale.files import checksum
from loopscale.fit import Observations
from loopscale.report import Report
from loopscale.tables import Table


def digest(observations: Observations) -> str:
    """Return a hash of the numbers that were observed, whatever file they came in."""
    p = observations.points
    columns = [p.active, p.tokens, p.recurrence, p.experts, observations.loss]
    return hashlib.sha256(np.stack(columns).tobytes()).hexdigest()


def file_facts(path: str | Path | None) -> dict[str, str]:
    """Return what provenance says of a file: its name and SHA-256; nothing where there is none."""
    if path is None:
        return {}
    return {"file": str(path), "file_sha256": checksum(Path(path))}


def add_table(report: Report, table: Table) -> None:
    """Add a table, its numbers to four digits."""
    rows = [[_cell(cell) for cell in row.values()] for row in table.records()]
    report.table(list(table.columns), rows)


def add_picture(report: Report, panels: Iterable[Panel], caption: str, height: float = 2.6) -> None:
    """Add panels two abreast."""
    given = tuple(panels)
    report.figure(Picture("", caption, given, height).figure(columns=min(len(given), 2)), caption)


def _cell(cell: Any) -> str:
    if isinstance(cell, float):
        return "" if cell != cell else f"{cell:.4g}"
    return str(cell)
