"""Sweeps to try a fit on: the paper's, simulated from its coefficients, and the public ones by name."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from loopscale.architecture import rung, rung_name
from loopscale.arrays import FloatArray
from loopscale.errors import InputError
from loopscale.fit.observations import Observations
from loopscale.fit.public import PUBLIC_FILES, load_public
from loopscale.laws import Points, ScalingLaw, published

__all__ = ["MICRO", "PUBLIC_FILES", "load_micro", "load_public", "simulate_sweep", "stacked"]

MICRO = ("micro", "micro-all")

SWEEP_RUNGS = ("0.3B", "0.6B", "1.0B")
SWEEP_EXPERTS = (1, 2, 4, 8, 16)
SWEEP_RECURRENCES = (1, 2, 3, 4, 6, 8)
SWEEP_TOKENS = tuple(np.linspace(1e11, 5e11, 12).tolist())
"""The paper's grid: 90 runs, and twelve points along each for its "more than 1,000 observations"."""


def load_micro(name: str = "micro") -> Observations:
    """Return the micro-sweep that ships with loopscale: measured, one looped layer (docs/micro-sweep.md).

    "micro" leaves out runs of fewer than 1.5M tokens, where more passes may still raise the loss; "micro-all" has them.
    """
    rows = Observations.read(Path(__file__).with_name("micro-sweep.csv"))
    return rows if name == "micro-all" else rows.where(rows.points.tokens >= 1.5e6)


def simulate_sweep(
    law: ScalingLaw | None = None,
    *,
    rungs: Sequence[str] = SWEEP_RUNGS,
    experts: Sequence[float] = SWEEP_EXPERTS,
    recurrences: Sequence[int] = SWEEP_RECURRENCES,
    tokens: Sequence[float] = SWEEP_TOKENS,
    noise: float = 0.0037,
    run_noise: float = 0.0,
    seed: int = 0,
) -> Observations:
    """Simulate the paper's sweep from ``law``: its published coefficients, unless another is given.

    Every combination of rung, experts and recurrence is one run, seen at each of ``tokens``. ``noise`` is the
    standard deviation of each observation and ``run_noise`` that of one shift per run, both normal and added to
    the loss in nats. A run's draws depend on ``seed`` and the run alone, so a further slice
    (``recurrences=(1, 2, 3, 4, 6, 8, 16)``) leaves the other runs as they were.
    """
    truth = published() if law is None else law
    if not (noise >= 0 and run_noise >= 0):
        raise InputError(f"noise is {noise} and run_noise {run_noise}; both should be zero or more")
    D = np.asarray(tokens, dtype=np.float64)
    grid = [(rung_name(size), E, R) for size, E, R in product(rungs, experts, recurrences)]
    if not grid or not D.size:
        raise InputError("a simulated sweep needs at least one rung, expert count, recurrence and token count")
    points = stacked(rung(size, experts=E).points(D, R, truth.counts) for size, E, R in grid)
    names = [f"{size}-E{E:g}-R{R}" for size, E, R in grid]
    drawn = np.concatenate([_noise(name, D, noise, run_noise, seed) for name in names])
    return Observations(
        points=points,
        loss=truth(points) + drawn,
        run=np.repeat(np.array(names), D.size),
        source=f"simulated from {truth.name} (noise {noise:g}, run noise {run_noise:g} nats, seed {seed})",
        counts=truth.counts,
        finished=np.ones(len(grid) * D.size, dtype=bool),
    )


def stacked(parts: Iterable[Points]) -> Points:
    """Join points end to end, each broadcast to one dimension; every part must know its loop and total."""
    rows = [
        [np.broadcast_to(np.asarray(value, dtype=np.float64), (p.active + p.tokens + p.recurrence).shape or (1,))
         for value in (p.active, p.tokens, p.recurrence, p.experts, p.loop_block, p.active / p.m)]
        for p in parts
    ]  # fmt: skip
    return Points(*(np.concatenate(column) for column in zip(*rows, strict=True)))


def _noise(name: str, D: FloatArray, noise: float, run_noise: float, seed: int) -> FloatArray:
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    shift = run_noise * random.standard_normal()
    return shift + noise * random.standard_normal(D.size)
