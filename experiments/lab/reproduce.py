"""Trains a tenth of the downstream experiment again and compares it with what ships: ``reproduce.py FOLDER [RUNS]``.

The same machine and versions give the same losses to the last digits. Other kernels round otherwise, and a run may then
differ as much as with another seed: it passes within four standard deviations of the seeds of a cell, and the mean
over all runs within one.
"""

from __future__ import annotations

import sys
from math import sqrt
from pathlib import Path
from statistics import fmean, variance

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from repeated_runs import within

from loopscale.lab import downstream
from loopscale.lab.downstream import CELLS, DONE, WIDTHS
from loopscale.lab.tables import Row

LOSSES = ("words_loss", "facts_loss", "text_loss")
ONE, MEAN = 4.0, 1.0
"""Standard deviations that one difference, and their mean, may have."""
ROUNDING = 0.02
"""Nats that stand for the standard deviation as long as one seed ships, whose spread nobody knows."""


def spread(rows: list[Row], loss: str) -> float:
    """Return the standard deviation of a loss between seeds of a cell, pooled over all cells."""
    by_cell = [[row[loss] for row in rows if cell.is_of(row)] for cell in CELLS]
    variances = [variance(losses) for losses in by_cell if len(losses) > 1]
    return sqrt(fmean(variances)) if variances else ROUNDING


def main(folder: Path, most: int) -> int:
    """Train, compare, and return 0 if all runs are within the tolerance."""
    shipped = [row for row in downstream.shipped_rows() if row["status"] == DONE]
    cells = [cell for cell in CELLS if cell.width == WIDTHS[0]][:most]
    rows = downstream.run(folder, [0], cells, tell=lambda about, _, row: None if row else print(about, flush=True))
    passed = []
    for loss in LOSSES:
        differences = {
            cell.about: row[loss] - before[loss]
            for cell in cells
            for row in rows
            for before in shipped
            if cell.is_of(row) and cell.is_of(before) and row["seed"] == before["seed"] == 0
        }
        if not differences:
            raise SystemExit("none of these runs ships: there is nothing to compare with")
        deviation = spread(shipped, loss)
        about = f"{loss} of {len(differences)} runs"
        passed.append(within(about, differences, MEAN * deviation, ONE * deviation))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100))
