"""The scaling law of a task: loss(N, D, R, E) fitted to the runs of the downstream experiment, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loopscale.core.errors import InputError
from loopscale.fitting import Fit, Observations, fit
from loopscale.fitting.compare import compare
from loopscale.fitting.covariance import coefficient_intervals
from loopscale.lab.downstream import CELLS, DONE
from loopscale.lab.tables import Row

LEAST = 3
"""Seeds of every cell below which no law is fitted: its intervals would come from too few runs."""
ASKED = ("kappa1", "theta")
"""The gain from recurrence, and how much experts raise it."""
HELD_OUT = ("none", "linear", "power", "bounded")
"""Mappings that predict the runs with the most passes from the others."""


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
        "run": [f"{row['width']}-{row['experts']}-{row['recurrence']}-{row['layers']}-{row['budget']}-{row['seed']}"
                for row in done],
    }  # fmt: skip
    return Observations.of(columns, units={"active": 1.0, "tokens": 1.0}, counts="without-embeddings", name=part)


def task_law(rows: Sequence[Row], part: str) -> Fit:
    """Fit the paper's law, which has kappa1 and theta, to one part, from at least ``LEAST`` seeds of every cell."""
    counts = [sum(cell.is_of(row) and row["status"] == DONE for row in rows) for cell in CELLS]
    if min(counts) < LEAST:
        raise InputError(
            f"the law on tasks needs {LEAST} seeds of every cell, and there are {min(counts)}; "
            f"run `loopscale lab downstream --seeds {LEAST}`"
        )
    return fit(observations(rows, part), outer="joint-moe", mapping="sparsity-conditional")


def asked_of(law: Fit) -> dict[str, Any]:
    """Return what a law on a task answers: its error beside the scatter of the losses, and kappa1 and theta.

    A degenerate fit answers nothing: ``undecided`` says why instead.
    """
    answer: dict[str, Any] = {"rmse": law.law.rmse, "deviation": float(law.observations.loss.std())}
    if law.degenerate:
        return answer | {"undecided": law.degenerate[0]}
    intervals = coefficient_intervals(law)
    return answer | {name: {"value": law.coefficients[name], "interval": list(intervals[name])} for name in ASKED}


def held_out_errors(rows: Sequence[Row], part: str) -> dict[str, float]:
    """Return the RMSE of each mapping on the runs with the most passes, fitted to the others."""
    most = f"R={max(row['recurrence'] for row in rows)}"
    result = compare(observations(rows, part), [most], outer="joint-moe", mappings=HELD_OUT, folds=0)
    return {name: result.score(most, name).rmse for name in HELD_OUT}
