"""Public runs of looped models: what each table holds, how its derived columns are made, and how to read it.

Training runs become ``Observations``. Curves over the passes at test time have no training tokens of their own
and stay tables: ``curves_at_test_time`` gives them one form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from loopscale.core.errors import InputError, shown
from loopscale.core.tables import Table
from loopscale.fitting.data.converters import Rows, numbers
from loopscale.fitting.data.observations import Observations
from loopscale.scaling import Counting, Points

VOCABULARY = 50_304
"""Of the Q Labs models; their embedding and their output head are separate matrices."""
GROWTH_BATCH = 524_288


def qlabs_geometry(depth: int) -> dict[str, int]:
    """Return the parameter counts of a Q Labs model of so many layers, which its source states in part.

    Layers are 128 times the depth wide, with gated feed-forwards of 8/3 the width rounded up to 256. A third of the
    layers, rounded up from the middle, is the loop.
    """
    width = 128 * depth
    layer = 4 * width**2 + 3 * width * 256 * math.ceil(8 * width / 3 / 256)
    return {
        "N_act": depth * layer,
        "N_total": depth * layer,
        "N_loop": (depth + 2) // 3 * layer,
        "N_embedding": 2 * VOCABULARY * width,
    }


def qlabs_loops_rows(files: dict[str, str]) -> list[dict[str, Any]]:
    """Make the table of runs at equal compute from tpl.json (passes varied) and tpp.json (sizes varied)."""
    budgets = {int(name): flops for name, flops in json.loads(files["tpl_budgets.json"]).items()}
    varied = [row for row in json.loads(files["tpl.json"]) if row["family"] == "loop"]
    for row in varied:
        row["budget"] = min(budgets, key=lambda name: abs(math.log(budgets[name] / row["C"])))
    rows = [
        _run(
            f"tpl-d{row['anchor']}-K{row['k']}-b{row['budget']}", "fixed-anchor K sweep (tied, Operator-1 recipe)",
            row["anchor"], row["k"], row["C"], row["C"] / (6 * row["Nc"]), round(row["L"], 6),
        )
        for row in sorted(varied, key=lambda row: (row["anchor"], row["budget"], row["k"]))
    ]  # fmt: skip
    recipes = {"van": "vanilla", "k1": "operator-1", "k2": "loop-2"}
    for row in json.loads(files["tpp.json"]):
        if row["arm"] in recipes:
            recipe, depth, budget = recipes[row["arm"]], row["depth"], row["budget"]
            run = _run(
                f"tpp-{recipe}-d{depth}-b{budget}", f"iso-compute ({recipe}, own recipe)", depth,
                2 if recipe == "loop-2" else 1, row["C"], row["D"], round(row["L"], 7),
            )  # fmt: skip
            rows.append(run | ({"N_loop": 0} if recipe == "vanilla" else {}))
    return rows


def _run(name: str, group: str, depth: int, passes: int, flops: float, tokens: float, loss: float) -> dict[str, Any]:
    counts = qlabs_geometry(depth)
    return {
        "run": name, "set": group, "depth": depth, **counts, "E": 1, "R": passes, "D": round(tokens),
        "flops": int(flops), "loss": loss,
    }  # fmt: skip


def qlabs_growth_rows(files: dict[str, str]) -> list[dict[str, Any]]:
    """Make the table of runs that grow from two to four passes from growth.json."""
    cells = [row for row in json.loads(files["growth.json"]) if row["arm"] == "k2"]
    return [
        {
            "run": f"grow-b{row['budget']:g}-d{row['depth']}-rho{row['rho']:.2f}", "depth": row["depth"],
            **qlabs_geometry(row["depth"]), "E": 1, "R_start": 2, "R_end": 4, "grown": f"{row['rho']:.2f}",
            "D": row["steps"] * GROWTH_BATCH, "loss": round(row["loss"], 6),
        }
        for row in cells
    ]  # fmt: skip


def qlabs_loops(rows: Rows, source: str, *, recipe: str = "fixed") -> Observations:
    """Return the Q Labs runs at equal compute.

    ``recipe="fixed"`` gives the 99 runs that vary the passes under one recipe; "all" adds 75 runs whose recipes were
    tuned for each architecture.
    """
    if recipe not in ("fixed", "all"):
        raise InputError(f"`recipe` is {shown(recipe)}", where="qlabs-loops", remedy="choose from fixed, all")
    chosen = [row for row in rows if recipe == "all" or row["set"].startswith("fixed-anchor")]
    return _observations(chosen, source)


def qlabs_regimes(rows: Rows, source: str, *, weight_decay: float | str = 0.8) -> Observations:
    """Return the Q Labs runs on fresh and on repeated data at one weight decay, or at ``"all"`` of them.

    Every run trains on 996M tokens, so a fit holds B and beta at values from another sweep.
    """
    decays = sorted({float(row["weight_decay"]) for row in rows})
    if weight_decay != "all" and weight_decay not in decays:
        listed = ", ".join(f"{value:g}" for value in decays)
        raise InputError(f"qlabs-regimes: `weight_decay` is {shown(weight_decay)}; choose from {listed}, or 'all'")
    chosen = [row for row in rows if weight_decay == "all" or float(row["weight_decay"]) == weight_decay]
    return _observations(chosen, source)


def marin_experts(rows: Rows, source: str) -> Observations:
    """Return Marin's runs of 64, 128 and 256 experts, four active, without a loop."""
    return _observations(rows, source)


def _observations(rows: Rows, source: str) -> Observations:
    unique = numbers(rows, "unique_tokens") if "unique_tokens" in rows[0] else None
    return Observations(
        points=Points(
            numbers(rows, "N_act"), numbers(rows, "D"), numbers(rows, "R"), numbers(rows, "E"),
            numbers(rows, "N_loop"), numbers(rows, "N_total"), unique,
        ),
        loss=numbers(rows, "loss"),
        run=np.array([row["run"] for row in rows]),
        source=source,
        counts=Counting.WITHOUT_EMBEDDINGS,
        finished=np.ones(len(rows), dtype=bool),
    )  # fmt: skip


def growth_table(rows: Rows) -> Table:
    """Return the runs that grow their passes: counts, first and last passes, the share of the tokens with the last."""
    names = ("N_act", "N_loop", "R_start", "R_end", "grown", "D", "loss")
    return Table({"run": [row["run"] for row in rows]} | {name: numbers(rows, name).tolist() for name in names})


def curves_at_test_time(name: str, rows: Rows) -> Table:
    """Return losses of trained models over the passes at test time, in one form for every source.

    Columns: ``run``, ``trained`` (how the passes were chosen in training: fixed, grown or random), ``R_train`` (the
    passes of the last part of training, the largest where they were drawn), ``R_test``, ``loss`` and its ``unit``.
    """
    read = _CURVES[name]
    return Table.from_records([record for row in rows if (record := read(row)) is not None])


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
CONVERTERS = {"qlabs-loops": qlabs_loops_rows, "qlabs-growth": qlabs_growth_rows}
