"""A simulated experiment: how often do nominal intervals contain the truth?

Each trial simulates the paper's sweep with run effects, fits it, resamples it by each scheme, and asks of every
interval whether it contains the value that the data were simulated from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from loopscale.architecture import rung
from loopscale.core.errors import InputError
from loopscale.core.tables import Table
from loopscale.fitting import Scheme, fit
from loopscale.fitting.covariance import coefficient_intervals
from loopscale.fitting.data.public import simulate_sweep, stacked
from loopscale.scaling import Points, published

COEFFICIENTS = ("kappa1", "kappa2", "theta")
PLACES = (
    ("0.3B", 1, 1, 1e11), ("0.3B", 16, 6, 2e11), ("0.6B", 4, 3, 2.5e11), ("0.6B", 1, 8, 3e11),
    ("1.0B", 8, 2, 4e11), ("1.0B", 16, 8, 5e11), ("1.0B", 1, 1, 5e11), ("0.3B", 8, 4, 4e11),
)  # fmt: skip
"""Rung, experts, recurrence and tokens of the predictions asked for: inside the sweep, its corners included."""


@dataclass(frozen=True)
class Setting:
    """What every trial of an experiment shares."""

    noise: float = 0.0026
    run_noise: float = 0.0026
    """Together 0.0037 nats, the paper's RMSE, half of the variance being the run's."""
    count: int = 100
    """Refits for each interval."""
    level: float = 0.9
    schemes: tuple[str, ...] = tuple(each.value for each in Scheme)


@dataclass(frozen=True)
class Interval:
    """One interval of one trial."""

    seed: int
    scheme: str
    what: str
    """A coefficient, or the design whose loss is predicted."""
    truth: float
    low: float
    high: float

    @property
    def covers(self) -> bool:
        """Whether the truth is inside."""
        return self.low <= self.truth <= self.high


def coverage_trial(seed: int, setting: Setting) -> list[Interval]:
    """Simulate one sweep and return every interval of every scheme."""
    truth, points = published(), _points()
    fitted = fit(simulate_sweep(truth, noise=setting.noise, run_noise=setting.run_noise, seed=seed), resamples=0)
    losses, found = truth(points), []
    for scheme in setting.schemes:
        again = fitted.resample(setting.count, scheme=scheme, seed=seed, workers=1)
        spans = coefficient_intervals(again, setting.level)
        found += [Interval(seed, scheme, name, truth.coefficients[name], *spans[name]) for name in COEFFICIENTS]
        low, high = again.law.interval(points, setting.level)
        names = [f"{size} E={E} R={R} D={D / 1e9:g}B" for size, E, R, D in PLACES]
        rows = zip(names, losses.tolist(), low.tolist(), high.tolist(), strict=True)
        found += [Interval(seed, scheme, *row) for row in rows]
    return found


def run_coverage(
    seeds: Sequence[int], setting: Setting, *, workers: int = 2, kept: Path | None = None
) -> list[Interval]:
    """Run the trials in parallel; those already in the file ``kept`` are not run again, new ones are added to it."""
    done = _kept(kept, setting)
    missing = [seed for seed in seeds if seed not in done]
    with ProcessPoolExecutor(workers) as pool:
        waiting = {pool.submit(coverage_trial, seed, setting): seed for seed in missing}
        for each in as_completed(waiting):
            done[waiting[each]] = each.result()
            if kept is not None:
                _keep(kept, setting, waiting[each], each.result())
    return [interval for seed in seeds for interval in done[seed]]


def coverage_table(intervals: Iterable[Interval]) -> Table:
    """Return, for each quantity, the share of its intervals that cover the truth and their median width, by scheme."""
    grouped: dict[tuple[str, str], list[Interval]] = {}
    for each in intervals:
        kind = each.what if each.what in COEFFICIENTS else "predictions"
        for what in dict.fromkeys((kind, each.what)):
            grouped.setdefault((what, each.scheme), []).append(each)
    return Table.from_records(
        [{"what": what, "scheme": scheme, "trials": len({each.seed for each in group}),
          "coverage": float(np.mean([each.covers for each in group])),
          "width": float(np.median([each.high - each.low for each in group]))}
         for (what, scheme), group in grouped.items()]
    )  # fmt: skip


def _points() -> Points:
    return stacked(rung(size, E).points(np.array([D]), R) for size, E, R, D in PLACES)


def _kept(path: Path | None, setting: Setting) -> dict[int, list[Interval]]:
    if path is None or not path.exists():
        return {}
    done = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            if row["setting"] == json.loads(json.dumps(asdict(setting))):
                done[row["seed"]] = [Interval(**each) for each in row["intervals"]]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path}: line {number} is not a trial; remove it to run that trial again") from None
    return done


def _keep(path: Path, setting: Setting, seed: int, intervals: list[Interval]) -> None:
    row = {"seed": seed, "setting": asdict(setting), "intervals": [asdict(each) for each in intervals]}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
