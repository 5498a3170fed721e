"""Where descents start: at typical coefficients, after a first stage on R = 1, at given values, or at random."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.fitting.descent import descend
from loopscale.fitting.problem import Problem


def typical(problem: Problem) -> dict[str, float]:
    """Return a plausible value for every coefficient, sized by the data; fixed ones keep theirs."""
    fixed = {name: value for name, value in zip(problem.names, problem.values, strict=True) if not np.isnan(value)}
    return problem.form.typical(np.exp(problem.log_loss), problem.x) | fixed


def check_finite(problem: Problem) -> None:
    """Refuse a form that has no finite loss at plausible coefficients: no search could begin."""
    with np.errstate(all="ignore"):
        residuals, slopes = problem.linearised(problem.point(typical(problem)))
    if not (np.isfinite(residuals).all() and np.isfinite(slopes).all()):
        raise InputError(
            "it gives no finite loss and derivatives on these data at plausible coefficients",
            where=str(problem.form), remedy="check the expression, and give `bounds`",
        )  # fmt: skip


def random_starts(problem: Problem, count: int, seed: int) -> FloatArray:
    """Return points drawn evenly over the whole box."""
    return problem.lower + problem.width * np.random.default_rng(seed).random((count, len(problem.free)))


def staged_start(problem: Problem) -> FloatArray:
    """Return a start whose base law has been fitted to the rows with R = 1, as the paper's first stage is."""
    u = problem.point(typical(problem))
    base, once = problem.base, problem.R == 1
    if not problem.mapping.loops or not base.any() or once.sum() <= len(problem.free):
        return u
    stage = spread_rows(problem.rows(once), 8 * len(problem.free)).with_fixed(~base, u)
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
