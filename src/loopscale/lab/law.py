"""The scaling law of a task: loss(N, D, R, E) fitted to the runs of the downstream experiment, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loopscale.fitting import Fit, Observations, fit
from loopscale.lab.downstream import DONE
from loopscale.lab.tables import Row

LEAST = 3
"""Seeds below which no law is fitted: its intervals would come from too few runs."""


def observations(rows: Sequence[Row], part: str) -> Observations:
    """Return the losses of one part as observations; separate layers are models of one pass."""
    done = [row for row in rows if row["status"] == DONE]
    columns: dict[str, list[Any]] = {
        "active": [row["active"] for row in done],
        "loop": [row["active"] // row["layers"] for row in done],
        "total": [row["total"] for row in done],
        "experts": [row["experts"] for row in done],
        "recurrence": [row["recurrence"] for row in done],
        "tokens": [row["tokens"] for row in done],
        "loss": [row[f"{part}_loss"] for row in done],
        "run": [f"{row['width']}-{row['experts']}-{row['recurrence']}-{row['layers']}-{row['seed']}" for row in done],
    }
    return Observations.of(columns, units={"active": 1.0, "tokens": 1.0}, counts="without embeddings", name=part)


def task_law(rows: Sequence[Row], part: str) -> Fit:
    """Fit the bounded law to one part."""
    return fit(observations(rows, part))
