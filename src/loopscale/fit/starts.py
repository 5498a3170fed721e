"""Where descents begin: typical values read off the data, random points of the box, and the base law first."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from loopscale.arrays import FloatArray
from loopscale.fit.problem import Problem
from loopscale.fit.solver import descend
from loopscale.laws.mappings import NoGain

_TYPICAL = {
    "alpha": -0.3, "beta": -0.3, "delta": -0.1, "gamma": 0.0, "omega": 0.0, "zeta": 0.0,
    "E_start": 2.0, "phi": 0.5, "kappa1": 0.5, "kappa2": 2.0, "theta": 0.3, "theta1": 0.3, "theta2": 0.3,
}  # fmt: skip


def typical(problem: Problem) -> dict[str, float]:
    """Return a plausible value for every coefficient, sized by the data."""
    loss, log_N, log_D = np.exp(problem.log_loss), np.log(problem.N).mean(), np.log(problem.D).mean()
    floor = 0.7 * loss.min()
    part = 0.5 * (loss.mean() - floor)
    values = dict(_TYPICAL)
    values |= {"A": part * np.exp(0.3 * log_N), "B": part * np.exp(0.3 * log_D), "c": floor}
    values["E_max"] = max(100.0, 2.0 * problem.E.max())
    if problem.outer.name == "routed":
        level = np.log10(loss).mean() + 0.1 * log_N / np.log(10.0)
        values |= {"a": -0.1, "b": -0.1, "c": 0.0, "d": level}
    fixed = {name: value for name, value in zip(problem.names, problem.values, strict=True) if not np.isnan(value)}
    return {name: float(values[name]) for name in problem.names} | fixed


def random_starts(problem: Problem, count: int, seed: int) -> FloatArray:
    """Return points drawn evenly over the whole box."""
    return problem.lower + problem.width * np.random.default_rng(seed).random((count, len(problem.free)))


def staged_start(problem: Problem) -> FloatArray:
    """Return a start whose base law has been fitted to the rows with R = 1, as the paper's first stage is."""
    u = problem.point(typical(problem))
    base, once = problem.base, problem.R == 1
    if isinstance(problem.mapping, NoGain) or not base.any() or once.sum() <= len(problem.free):
        return u
    stage = spread_rows(problem.rows(once), 8 * len(problem.free)).holding(~base, u)
    u[base] = descend(stage, u[base][None, :], tolerance=1e-2, patience=4).u_SP[0]
    return u


def spread_rows(problem: Problem, most: int) -> Problem:
    """Return the problem on at most that many rows, spread evenly over the sorted design.

    A search needs the shape of the objective, not its last digit; a tenth of the rows has it.
    """
    if len(problem) <= most:
        return problem
    order = np.lexsort((problem.D, problem.N, problem.R, problem.E))
    chosen = order[np.linspace(0, len(order) - 1, most).round().astype(int)]
    return problem.rows(np.sort(chosen))


def start_from(problem: Problem, coefficients: Mapping[str, float]) -> FloatArray:
    """Return a start at given coefficients; those not given are typical."""
    return problem.point(typical(problem) | dict(coefficients))
