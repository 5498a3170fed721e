"""The table of docs/prediction.md: coverage, bias and scores of forecasts by sweep and decades, from LOOPSCALE_DATA.

    LOOPSCALE_DATA=… python experiments/forecast/evaluate.py [--cache FILE] [--leave-one-out]

Sweeps: those of ``loopscale scoreboard``, and the subsets of ``real/nxai-xlstm-isoflop.csv`` where the folder has it.
``--leave-one-out`` chooses the centre of the floor's prior on the other sweeps and scores the one left out.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from loopscale.core.errors import InputError
from loopscale.fitting import Observations, fit, frontier, load_public
from loopscale.fitting.isoflop import isoflop
from loopscale.fitting.scoreboard import KEEP, SWEEPS, interval_score
from loopscale.scaling import Points

DECADES = (0.5, 1.0, 1.5, 2.0, 3.0)
LEVELS = (0.5, 0.8, 0.9)
ISOFLOP = ("marin-comma-isoflop", "misfitting-isoflop", "porian-chinchilla-decay")
NEAR, FAR = np.log(1.6), 0.6
"""Rows within 1.6x of the parabola's N* and more than 0.6 decades out."""
BEFORE = {
    ("datablations", 0.5): 0.191, ("datablations", 1.0): 0.221, ("datablations", 1.5): 0.582,
    ("gemstones-hot", 0.5): 0.071, ("gemstones-hot", 1.0): 0.091, ("gemstones-hot", 1.5): 0.104,
    ("marin-comma-isoflop", 0.5): 0.057, ("marin-comma-isoflop", 1.0): 0.069, ("marin-comma-isoflop", 1.5): 0.095,
    ("misfitting-isoflop", 0.5): 0.062, ("misfitting-isoflop", 1.0): 0.083, ("misfitting-isoflop", 1.5): 0.134,
    ("mlf-redpajama-c4val", 0.5): 0.152, ("mlf-redpajama-c4val", 1.0): 0.152, ("mlf-redpajama-c4val", 1.5): 0.088,
    ("olmo-ladder", 0.5): 0.087, ("olmo-ladder", 1.0): 0.081, ("olmo-ladder", 1.5): 0.069,
    ("porian-chinchilla-decay", 0.5): 0.064, ("porian-chinchilla-decay", 1.0): 0.091,
    ("porian-chinchilla-decay", 1.5): 0.106, ("nx-llama_ctx16384", 0.5): 0.070, ("nx-llama_ctx16384", 1.0): 0.198,
    ("nx-llama_ctx2048", 0.5): 0.066, ("nx-llama_ctx8192", 0.5): 0.057, ("nx-llama_ctx8192", 1.0): 0.088,
    ("nx-mlstm_ctx16384", 0.5): 0.533,
}  # fmt: skip
"""Interval scores of version 0.2 at 90%, measured by its review."""


def sweeps() -> dict[str, Observations]:
    """Return the sweeps by name."""
    found = {}
    for name in SWEEPS:
        try:
            data = load_public(name)
        except InputError as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
            continue
        found[name] = data.keep(KEEP[name]) if name in KEEP else data
    path = Path(os.environ.get("LOOPSCALE_DATA", "")) / "real" / "nxai-xlstm-isoflop.csv"
    if path.is_file():
        rows = list(csv.DictReader(path.open()))
        for subset in sorted({row["subset"] for row in rows}):
            part = [row for row in rows if row["subset"] == subset]
            sizes = [float(row["N_total"]) - 2 * 50304 * float(row["width"]) for row in part]  # without embeddings
            columns = {name: [float(row[name]) for row in part] for name in ("D", "loss")}
            found[f"nx-{subset}"] = Observations.of({"run": [row["run"] for row in part], "N": sizes, **columns})
    return found


def split(name: str, data: Observations, decades: float) -> dict[str, Any] | None:
    """Return how well the top decades of a sweep are forecast; None where too few rows remain."""
    flops = data.points.train_flops
    mask = flops > flops.max() / 10**decades * (1 + 1e-9)
    if (~mask).sum() < 8:
        return None
    try:
        fitted, hidden = fit(data.where(~mask), resamples=30), data.where(mask)
    except InputError:
        return None
    loss, row = np.log(hidden.loss), {"sweep": name, "decades": decades, "rows": int(mask.sum())}
    for level in LEVELS:
        new_run = fitted.law.forecast(hidden.points, level)
        row[f"inside_{level:g}"] = ((new_run.low <= hidden.loss) & (hidden.loss <= new_run.high)).tolist()
    row["score"] = interval_score(np.log(new_run.low), np.log(new_run.high), loss, 0.9)
    row["error"] = (np.log(new_run.loss) - loss).tolist()
    row["beyond"] = np.log10(hidden.points.train_flops / flops[~mask].max()).tolist()
    if name in ISOFLOP or name.startswith("nx-"):
        try:
            curves = isoflop(data)
        except InputError:
            return row
        best = curves.optimal_size(hidden.points.train_flops)
        row["near"] = (np.abs(np.log(hidden.points.active / best)) < NEAR).tolist()
        last = [budget for budget in curves.budgets if not budget.reason][-1]
        if last.flops > flops[~mask].max() * 1.2:
            at = Points(np.array(last.size), np.array(last.flops / 6 / last.size))
            one = fitted.law.forecast(at)
            row["minimum"] = float(np.log(one.loss / last.loss))
            row["minimum_law"] = float(np.log(one.law / last.loss))
    return row


def table(rows: list[dict[str, Any]]) -> None:
    """Print the averages that docs/prediction.md states."""
    for decades in DECADES:
        part = [row for row in rows if row["decades"] == decades]
        if not part:
            continue
        covered = np.mean([np.mean(row["inside_0.9"]) for row in part])
        pooled = {level: np.mean(np.concatenate([row[f"inside_{level:g}"] for row in part])) for level in LEVELS}
        known = [(row["score"], BEFORE[row["sweep"], decades]) for row in part if (row["sweep"], decades) in BEFORE]
        ratio = float(np.exp(np.mean([np.log(a / b) for a, b in known]))) if known else float("nan")
        errors = [np.mean(np.abs(row["error"])) for row in part]
        bias = [np.mean(row["error"]) for row in part]
        print(f"{decades:g} decades, {len(part)} sweeps: covered {covered:.1%} by sweep; pooled "
              + ", ".join(f"{level:.0%} {share:.1%}" for level, share in pooled.items())
              + f"; error {np.mean(errors):.2%}, bias {np.mean(bias):+.2%}; "
              f"score over 0.2's {ratio:.2f} ({len(known)})")  # fmt: skip
    near = [row for row in rows if "near" in row and row["decades"] <= 1.5]
    chosen = [np.array(row["near"]) & (np.array(row["beyond"]) > FAR) for row in near]
    inside = np.concatenate([np.array(row["inside_0.9"])[mask] for row, mask in zip(near, chosen, strict=True)])
    bias = [np.mean(np.array(row["error"])[mask]) for row, mask in zip(near, chosen, strict=True) if mask.any()]
    said = f"near-optimal, more than {FAR} decades out: {inside.mean():.1%} of {len(inside)} covered"
    print(f"{said}, bias {np.mean(bias):+.2%}")
    decade = [row for row in near if row["decades"] == 1 and "minimum" in row]
    ends = {row["sweep"]: (row["minimum"], row["minimum_law"]) for row in decade}
    for name, (ours, law) in ends.items():
        print(f"  last minimum, one decade out, {name}: {ours:+.2%} (law {law:+.2%})")
    ours, laws = (np.mean([abs(pair[k]) for pair in ends.values()]) for k in (0, 1))
    print(f"  mean absolute {ours:.2%}, law {laws:.2%}")


def leave_one_out(data: dict[str, Observations]) -> None:
    """Choose the centre of the floor's prior on the other sweeps, and score the one left out, one decade out."""
    shares = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75)
    errors: dict[str, dict[float, float]] = {}
    for share in shares:
        frontier.FLOOR = share  # type: ignore[misc]
        for name, sweep in data.items():
            row = split(name, sweep, 1.0)
            if row is not None:
                errors.setdefault(name, {})[share] = float(np.mean(np.abs(row["error"])))
    chosen = {}
    for name in errors:
        others = {share: np.mean([errors[other][share] for other in errors if other != name]) for share in shares}
        best = min(others, key=lambda share: others[share])
        chosen[name] = errors[name][best]
        print(f"{name:<28} floor {best:.2f} chosen on the others: error {chosen[name]:.2%}")
    plain = np.mean([error[0.65] for error in errors.values()])
    print(f"mean {np.mean(list(chosen.values())):.2%}; with 0.65 for all {plain:.2%}")


def main() -> None:
    """Compute or read the splits, and print the table."""
    data = sweeps()
    if "--leave-one-out" in sys.argv:
        leave_one_out(data)
        return
    cache = Path(sys.argv[sys.argv.index("--cache") + 1]) if "--cache" in sys.argv else None
    if cache is not None and cache.is_file():
        rows = json.loads(cache.read_text())
    else:
        rows = [row for name, sweep in data.items() for d in DECADES if (row := split(name, sweep, d)) is not None]
        if cache is not None:
            cache.write_text(json.dumps(rows))
    table(rows)


if __name__ == "__main__":
    main()
