"""Public runs of looped models, read from their tables.

Training runs become ``Observations``. Curves over the passes at test time have no training tokens of their own
and stay tables: ``curves_at_test_time`` gives them one form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from loopscale.core.errors import InputError, shown
from loopscale.core.tables import Table
from loopscale.fitting.data.converters import Rows, numbers
from loopscale.fitting.data.downloads import public_rows, public_source
from loopscale.fitting.data.observations import Observations
from loopscale.scaling import Counting, Points


def qlabs_loops(*, recipe: str = "fixed") -> Observations:
    """Return the Q Labs runs at equal compute.

    ``recipe="fixed"`` gives the 99 runs that vary the passes under one recipe; "all" adds 75 runs whose recipes were
    tuned for each architecture.
    """
    if recipe not in ("fixed", "all"):
        raise InputError(f"`recipe` is {shown(recipe)}", where="qlabs-loops", remedy="choose from fixed, all")
    rows = public_rows("qlabs-loops")
    chosen = [row for row in rows if recipe == "all" or row["set"].startswith("fixed-anchor")]
    return _observations(chosen, "qlabs-loops")


def qlabs_regimes(*, weight_decay: float | str = 0.8) -> Observations:
    """Return the Q Labs runs on fresh and on repeated data at one weight decay, or at ``"all"`` of them.

    Every run trains on 996M tokens, so a fit holds B and beta at values from another sweep.
    """
    rows = public_rows("qlabs-regimes")
    decays = sorted({float(row["weight_decay"]) for row in rows})
    if weight_decay != "all" and weight_decay not in decays:
        listed = ", ".join(f"{value:g}" for value in decays)
        raise InputError(f"qlabs-regimes: `weight_decay` is {shown(weight_decay)}; choose from {listed}, or 'all'")
    chosen = [row for row in rows if weight_decay == "all" or float(row["weight_decay"]) == weight_decay]
    return _observations(chosen, "qlabs-regimes")


def marin_experts() -> Observations:
    """Return Marin's runs of 64, 128 and 256 experts, four active, without a loop."""
    return _observations(public_rows("marin-experts"), "marin-experts")


def _observations(rows: Rows, name: str) -> Observations:
    unique = numbers(rows, "unique_tokens") if "unique_tokens" in rows[0] else None
    return Observations(
        points=Points(
            numbers(rows, "N_act"), numbers(rows, "D"), numbers(rows, "R"), numbers(rows, "E"),
            numbers(rows, "N_loop"), numbers(rows, "N_total"), unique,
        ),
        loss=numbers(rows, "loss"),
        run=np.array([row["run"] for row in rows]),
        source=public_source(name),
        counts=Counting.WITHOUT_EMBEDDINGS,
        finished=np.ones(len(rows), dtype=bool),
    )  # fmt: skip


def growth_table() -> Table:
    """Return the runs that grow their passes: counts, first and last passes, the share of the tokens with the last."""
    rows = public_rows("qlabs-growth")
    names = ("N_act", "N_loop", "R_start", "R_end", "grown", "D", "loss")
    return Table({"run": [row["run"] for row in rows]} | {name: numbers(rows, name).tolist() for name in names})


def curves_at_test_time(name: str) -> Table:
    """Return losses of trained models over the passes at test time, in one form for every source.

    Columns: ``run``, ``trained`` (how the passes were chosen in training: fixed, grown or random), ``R_train`` (the
    passes of the last part of training, the largest where they were drawn), ``R_test``, ``loss`` and its ``unit``.
    """
    read = _CURVES[name]
    return Table.from_records([record for row in public_rows(name) if (record := read(row)) is not None])


def _qlabs_curve(row: dict[str, str]) -> dict[str, Any]:
    how, passes = {
        "loop_2 (trained K=2)": ("fixed", 2),
        "loop_grow (2->4 fixed)": ("grown", 4),
        "loop_grow_random (K~U{2..6} after growth)": ("random", 6),
    }[row["trained"]]
    return _point(row["run"], how, passes, row["R_test"], row["loss"], "nats")


def _nanochat_curve(row: dict[str, str]) -> dict[str, Any] | None:
    if row["kind"] != "test-time recurrence":
        return None
    how = "random" if "sampled" in row["run"] else "fixed"
    return _point(row["run"], how, int(row["R_train"]), row["R_test"], row["bpb"], "bits per byte")


def _marin_curve(row: dict[str, str]) -> dict[str, Any]:
    passes = [int(text) for text in row["R_train"].split(",")]
    how = "random" if len(passes) > 1 else "fixed"
    return _point(row["run"], how, max(passes), row["R_test"], row["loss"], "nats")


def _point(run: str, trained: str, passes: int, tested: str, loss: str, unit: str) -> dict[str, Any]:
    return {
        "run": run, "trained": trained, "R_train": passes, "R_test": int(tested), "loss": float(loss), "unit": unit,
    }  # fmt: skip


_CURVES: dict[str, Callable[[dict[str, str]], dict[str, Any] | None]] = {
    "qlabs-test-time": _qlabs_curve,
    "looped-nanochat": _nanochat_curve,
    "marin-reentrant": _marin_curve,
}
TABLES = ("qlabs-test-time", "looped-nanochat", "marin-reentrant", "qlabs-growth")
"""Tables that are not sweeps of one loss for each training run."""
