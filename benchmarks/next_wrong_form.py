"""Does `next` survive a law whose form is slightly wrong? Chosen runs against simple rules at equal compute.

    python benchmarks/next_wrong_form.py [--sweeps 20]

A sweep of 16 runs from 20M to 160M parameters has to forecast a model of 7B parameters on 140B tokens. The truth is
Chinchilla's law, or one that it cannot describe: bent down with compute, or with an interaction of size and data. Runs
are bought by `next`, at random, from the cheapest up, or the largest at 20 tokens per parameter first; the law is
fitted again with them, and its error at the target is set beside the one that `next` announced.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are small: threads only cost

import numpy as np

from loopscale.choosing import Goal, RunCandidates, Target, next_runs
from loopscale.core.arrays import FloatArray
from loopscale.core.tables import markdown
from loopscale.fitting import Observations, fit
from loopscale.fitting.data.public import stacked
from loopscale.scaling import Counting, Points, find_law

NOISE = 0.003
"""Standard deviation of ln loss."""
SIZES, RATIOS = (20e6, 40e6, 80e6, 160e6), (10.0, 20.0, 40.0, 80.0)
POOL_SIZES, POOL_RATIOS = np.geomspace(20e6, 2.56e9, 15), (10.0, 20.0, 40.0, 80.0)
TARGET = Points(np.array([7e9]), np.array([140e9]), np.ones(1), np.ones(1), np.zeros(1), np.array([7e9]))
BUDGETS = (3e19, 3e20)
RESAMPLES = 16

Truth = Callable[[Points], FloatArray]


def exact(points: Points) -> FloatArray:
    """Return losses of Chinchilla's law as Epoch AI fitted it again."""
    return find_law("chinchilla-epoch-2024")(points)


def bent(points: Points) -> FloatArray:
    """Return losses that fall faster with compute than the law can follow: ln L less 0.004 (log10 C - 18)^2."""
    return np.asarray(exact(points) * np.exp(-0.004 * (np.log10(points.train_flops) - 18) ** 2))


def interacting(points: Points) -> FloatArray:
    """Return losses whose size and data terms also multiply."""
    c = find_law("chinchilla-epoch-2024").coefficients
    units = find_law("chinchilla-epoch-2024").units
    size = c["A"] * (points.active / units.parameters) ** c["alpha"]
    data = c["B"] * (points.tokens / units.tokens) ** c["beta"]
    return np.asarray(exact(points) + 0.15 * size * data)


TRUTHS: dict[str, Truth] = {"Chinchilla exactly": exact, "bent down with compute": bent, "N x D": interacting}


@dataclass(frozen=True)
class Trial:
    """What one way of choosing brought for one simulated sweep."""

    way: str
    error: float
    announced: float | None = None


def trials(truth: Truth, budget: float, seed: int) -> list[Trial]:
    """Return the errors of every way to spend the budget on one simulated sweep."""
    random = np.random.default_rng(seed)
    first = _observed(_runs(SIZES, RATIOS), truth, random, "start")
    pool = _runs(POOL_SIZES, POOL_RATIOS)
    outcomes = _observed(pool, truth, random, "new")  # a run has one outcome, whoever chooses it
    fitted = fit(first, resamples=RESAMPLES, seed=seed)
    chosen = next_runs(fitted, budget, Target(TARGET, Goal.PREDICTIONS), candidates=pool)
    wanted = {(run.active, run.tokens) for run in chosen.runs}
    p = pool.points
    usual = np.where(np.isclose(p.tokens / p.active, 20.0), p.active, 0.0)
    ways = {
        "nothing": np.array([], dtype=np.int64),
        "next": np.flatnonzero([(N, D) in wanted for N, D in zip(p.active.tolist(), p.tokens.tolist(), strict=True)]),
        "random": _affordable(pool, random.permutation(len(pool)), budget),
        "cheapest": _affordable(pool, np.argsort(pool.flops), budget),
        "largest": _affordable(pool, np.argsort(-usual, kind="stable")[: int((usual > 0).sum())], budget),
    }
    found = []
    for way, picked in ways.items():
        data = first if not len(picked) else _joined(first, outcomes.where(picked))
        law = fit(data, resamples=0).law
        error = float(law(TARGET)[0] - truth(TARGET)[0])
        found.append(Trial(way, error, chosen.after if way == "next" else None))
    return found


def _runs(sizes: FloatArray | tuple[float, ...], ratios: tuple[float, ...]) -> RunCandidates:
    N = np.repeat(np.asarray(sizes, dtype=np.float64), len(ratios))
    points = Points(N, N * np.tile(ratios, len(sizes)), np.ones(len(N)), np.ones(len(N)), 0 * N, N)
    return RunCandidates(tuple(f"{size / 1e6:.0f}M" for size in N), points, points.train_flops)


def _affordable(pool: RunCandidates, order: np.ndarray, budget: float) -> np.ndarray:
    taken, left = [], budget
    for i in order:
        if pool.flops[i] <= left:
            taken.append(int(i))
            left -= pool.flops[i]
    return np.array(taken, dtype=np.int64)


def _observed(runs: RunCandidates, truth: Truth, random: np.random.Generator, name: str) -> Observations:
    loss = truth(runs.points) * np.exp(NOISE * random.standard_normal(len(runs)))
    names = np.array([f"{name}-{i}" for i in range(len(runs))])
    return Observations(runs.points, loss, names, "simulated", Counting.WITHOUT_EMBEDDINGS)


def _joined(first: Observations, second: Observations) -> Observations:
    points = stacked([first.points, second.points])
    loss, run = (np.concatenate([getattr(first, name), getattr(second, name)]) for name in ("loss", "run"))
    return Observations(points, loss, run, "simulated", Counting.WITHOUT_EMBEDDINGS)


def row(truth: str, budget: float, sweeps: int) -> list[str]:
    """Return one line of the table: the RMS error of each way, and what was announced."""
    found = [trial for seed in range(sweeps) for trial in trials(TRUTHS[truth], budget, seed)]
    ways = list(dict.fromkeys(trial.way for trial in found))
    errors = {way: np.array([trial.error for trial in found if trial.way == way]) for way in ways}
    rms = {way: float(np.sqrt(np.mean(values**2))) for way, values in errors.items()}
    announced = float(np.sqrt(np.mean([trial.announced**2 for trial in found if trial.announced is not None])))
    return [truth, f"{budget:.0e}", *(f"{value:.4f}" for value in rms.values()), f"{announced:.4f}",
            f"{rms['next'] / rms['largest']:.2f}", f"{announced / rms['next']:.2f}"]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=20)
    sweeps = parser.parse_args().sweeps
    columns = ["truth", "FLOPs", "nothing", "next", "random", "cheapest", "largest", "announced", "next / largest",
               "announced / real"]  # fmt: skip
    print(markdown(columns, [row(truth, budget, sweeps) for truth in TRUTHS for budget in BUDGETS]))


if __name__ == "__main__":
    main()
