"""The tables of docs/forecasts.md: coverage, bias and scores of forecasts by sweep and decades, from LOOPSCALE_DATA.

    LOOPSCALE_DATA=… python experiments/forecast/evaluate.py [--leave-one-out]

Sweeps: those of ``loopscale scoreboard``, and the subsets of ``real/nxai-xlstm-isoflop.csv`` where the folder has it.
Every sweep is cut at several computes, fitted on the runs below and scored on those above, and by 5 folds of its runs.
``--leave-one-out`` chooses the centre of the floor's prior on the other sweeps and scores the one left out;
``calibrate.py`` does the same for the constants of the interval.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.core.errors import InputError
from loopscale.fitting import Observations, fit, frontier, load_public
from loopscale.fitting.held_out import interval_score
from loopscale.fitting.isoflop import isoflop
from loopscale.fitting.scoreboard import KEEP, SWEEPS
from loopscale.scaling import Points, ScalingLaw, above_optimum

DECADES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
LEVELS = (0.5, 0.8, 0.9)
RESAMPLES = 30
FOLDS = 5
FEWEST = 8
"""Rows that a fit needs."""
ISOFLOP = ("marin-comma-isoflop", "misfitting-isoflop", "porian-chinchilla-decay")
NEAR, FAR = np.log(1.6), 0.6
"""Near-optimal rows: within 1.6x of the parabola's N*, and more than 0.6 decades out."""
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


@dataclass
class Split:
    """One sweep cut in two: its larger runs as they were forecast from the smaller ones, row by row, in ln loss."""

    sweep: str
    decades: float
    """Hidden decades; 0 for a fold."""
    loss: FloatArray
    forecast: FloatArray
    half: dict[float, FloatArray]
    """Half the width of the interval, by level."""
    distance: FloatArray
    """Decades beyond the data, as the interval counts them."""
    compute: FloatArray
    """Decades of compute beyond the data."""
    above: FloatArray
    """How far above the frontier."""
    deviation: FloatArray
    """Of the resampled laws."""
    noise: float
    near_noise: float
    near: BoolArray
    """Within 1.6x of the parabola's best size; nowhere for sweeps without isoFLOP budgets."""
    minimum: tuple[float, float] | None = field(default=None)
    """Error at the lowest point of the last budget: of the forecast, of the law alone."""

    @property
    def error(self) -> FloatArray:
        """Forecast less measured."""
        return self.forecast - self.loss

    def inside(self, level: float) -> BoolArray:
        """Return which losses came out inside their interval."""
        return np.abs(self.error) <= self.half[level]

    @property
    def score(self) -> float:
        """The interval score at 90%."""
        return interval_score(self.forecast - self.half[0.9], self.forecast + self.half[0.9], self.loss, 0.9)


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


def split(name: str, data: Observations, hidden_rows: BoolArray, decades: float) -> Split | None:
    """Fit the rows that are not hidden and forecast the others; None where too few rows remain or none is hidden."""
    if (~hidden_rows).sum() < FEWEST or not hidden_rows.any():
        return None
    try:
        law, hidden = fit(data.where(~hidden_rows), resamples=RESAMPLES).law, data.where(hidden_rows)
    except InputError:
        return None
    if law.spread is None or law.frontier is None or law.frontier.noise is None:
        return None
    points, curve, near_noise = hidden.points, law.frontier, law.frontier.noise
    by_level = {level: law.forecast(points, level) for level in LEVELS}
    row = Split(
        sweep=name, decades=decades, loss=np.log(hidden.loss), forecast=np.log(by_level[0.9].loss),
        half={level: np.log(each.high / each.loss) for level, each in by_level.items()},
        distance=by_level[0.9].decades, compute=law.spread.decades(points),
        above=above_optimum(law, points, curve.cost), deviation=law.deviation(points),
        noise=law.spread.noise, near_noise=near_noise,
        near=np.zeros(len(hidden), dtype=bool),
    )  # fmt: skip
    if decades and (name in ISOFLOP or name.startswith("nx-")):
        _near_optimum(row, law, data, hidden)
    return row


def _near_optimum(row: Split, law: ScalingLaw, data: Observations, hidden: Observations) -> None:
    """Mark the rows near the best size of their budget, and forecast the last budget's minimum."""
    try:
        curves = isoflop(data)
    except InputError:
        return
    row.near = np.abs(np.log(hidden.points.active / curves.optimal_size(hidden.points.train_flops))) < NEAR
    last = [budget for budget in curves.budgets if not budget.reason][-1]
    if law.spread is not None and last.flops > law.spread.frontier * 1.2:
        one = law.forecast(Points(np.array(last.size), np.array(last.flops / 6 / last.size)))
        row.minimum = float(np.log(one.loss / last.loss)), float(np.log(one.law / last.loss))


def splits(data: dict[str, Observations]) -> Iterator[Split]:
    """Cut every sweep at several computes, and by folds of its runs."""
    for name, sweep in data.items():
        flops = sweep.points.train_flops
        runs = np.unique(sweep.run)
        fold = dict(zip(runs.tolist(), np.random.default_rng(0).permutation(len(runs)) % FOLDS, strict=True))
        folds = np.array([fold[run] for run in sweep.run.tolist()])
        cuts = [(flops > flops.max() / 10**decades * (1 + 1e-9), decades) for decades in DECADES]
        for mask, decades in [*cuts, *((folds == k, 0.0) for k in range(FOLDS))]:
            row = split(name, sweep, mask, decades)
            if row is not None:
                yield row


def by_sweep(rows: list[Split], level: float) -> float:
    """Return the mean over sweeps of the share of losses inside their interval."""
    names = {row.sweep for row in rows}
    return float(np.mean([pooled([row for row in rows if row.sweep == name], level) for name in names]))


def pooled(rows: list[Split], level: float) -> float:
    """Return the share of all losses inside their interval."""
    return float(np.mean(np.concatenate([row.inside(level) for row in rows])))


def table(rows: list[Split]) -> None:
    """Print the averages that docs/forecasts.md states."""
    for decades in DECADES:
        part = [row for row in rows if row.decades == decades]
        if not part:
            continue
        known = [(row.score, BEFORE[row.sweep, decades]) for row in part if (row.sweep, decades) in BEFORE]
        ratio = f"{np.exp(np.mean([np.log(a / b) for a, b in known])):.2f} ({len(known)})" if known else "unknown"
        errors, bias = [np.mean(np.abs(row.error)) for row in part], [np.mean(row.error) for row in part]
        print(f"{decades:g} decades, {len(part)} sweeps: covered {by_sweep(part, 0.9):.1%} by sweep; pooled "
              + ", ".join(f"{level:.0%} {pooled(part, level):.1%}" for level in LEVELS)
              + f"; error {np.mean(errors):.2%}, bias {np.mean(bias):+.2%}; score over 0.2's {ratio}")  # fmt: skip
    reviewed = [row for row in rows if 0 < row.decades <= 1.5]
    known = [(row.score, BEFORE[row.sweep, row.decades]) for row in reviewed if (row.sweep, row.decades) in BEFORE]
    print(f"mean over the {len(reviewed)} cuts of .5 to 1.5 decades: covered "
          f"{np.mean([np.mean(row.inside(0.9)) for row in reviewed]):.1%}; pooled "
          + ", ".join(f"{level:.0%} {pooled(reviewed, level):.1%}" for level in LEVELS)
          + f"; score over 0.2's {np.exp(np.mean([np.log(a / b) for a, b in known])):.2f} ({len(known)})")  # fmt: skip
    far = [row for row in rows if np.any(row.compute > 2)]
    shares: dict[str, list[BoolArray]] = {row.sweep: [] for row in far}
    for row in far:
        shares[row.sweep].append(row.inside(0.9)[row.compute > 2])
    covered = np.mean([np.mean(np.concatenate(parts)) for parts in shares.values()])
    print(f"rows 2 to 3.5 decades out of all cuts, {len(shares)} sweeps: covered {covered:.1%} by sweep")
    folds = [row for row in rows if not row.decades]
    print(f"{FOLDS}-fold: " + ", ".join(f"{level:.0%} {pooled(folds, level):.1%}" for level in LEVELS)
          + f"; by sweep {by_sweep(folds, 0.9):.1%}")  # fmt: skip
    near = [(row, row.near & (row.distance > FAR)) for row in rows if 0 < row.decades <= 1.5]
    near = [(row, mask) for row, mask in near if mask.any()]
    inside = np.concatenate([row.inside(0.9)[mask] for row, mask in near])
    bias = np.mean([np.mean(row.error[mask]) for row, mask in near])
    print(f"near-optimal, more than {FAR} decades out: {inside.sum()} of {len(inside)} covered, bias {bias:+.2%}")
    ends = {row.sweep: row.minimum for row in rows if row.decades == 1 and row.minimum is not None}
    for name, (ours, law) in ends.items():
        print(f"  last minimum, one decade out, {name}: {ours:+.2%} (law {law:+.2%})")
    mean = [np.mean([abs(pair[k]) for pair in ends.values()]) for k in (0, 1)]
    print(f"  mean absolute {mean[0]:.2%}, law {mean[1]:.2%}")


def leave_one_out(data: dict[str, Observations]) -> None:
    """Choose the centre of the floor's prior on the other sweeps, and score the one left out, one decade out."""
    shares = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75)
    errors: dict[str, dict[float, float]] = {}
    for share in shares:
        frontier.FLOOR = share
        for name, sweep in data.items():
            flops = sweep.points.train_flops
            row = split(name, sweep, flops > flops.max() / 10 * (1 + 1e-9), 1.0)
            if row is not None:
                errors.setdefault(name, {})[share] = float(np.mean(np.abs(row.error)))
    chosen = {}
    for name in errors:
        others = {share: np.mean([errors[other][share] for other in errors if other != name]) for share in shares}
        best = min(others, key=lambda share: others[share])
        chosen[name] = errors[name][best]
        print(f"{name:<28} floor {best:.2f} chosen on the others: error {chosen[name]:.2%}")
    plain = np.mean([error[0.65] for error in errors.values()])
    print(f"mean {np.mean(list(chosen.values())):.2%}; with 0.65 for all {plain:.2%}")


def main() -> None:
    """Compute the splits and print the tables."""
    data = sweeps()
    if "--leave-one-out" in sys.argv:
        leave_one_out(data)
    else:
        table(list(splits(data)))


if __name__ == "__main__":
    main()
