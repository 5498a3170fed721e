"""The best use of a training budget under a law: how many parameters, how many tokens, and what experts are worth.

Sizes are counted as the law counts them, with or without embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.numerics import geometric_bisection
from loopscale.core.quantities import format_power
from loopscale.core.tables import Table
from loopscale.scaling import costs
from loopscale.scaling.law import ScalingLaw
from loopscale.scaling.outer import Chinchilla
from loopscale.scaling.proportions import DENSE, Proportions
from loopscale.scaling.trust import tails


@dataclass(frozen=True)
class Allocation:
    """The best split of a training budget between parameters and tokens, and how it grows with the budget."""

    flops: float
    size: float
    """N*: active parameters."""
    tokens: float
    """D*"""
    loss: float
    size_exponent: float
    """d ln N* / d ln C"""
    token_exponent: float
    """d ln D* / d ln C"""


def compute_optimal(law: ScalingLaw, flops: float, models: Proportions = DENSE) -> Allocation:
    """Return N*(C) and D*(C): the lowest loss of models of one proportion at C = 6 N_unroll D.

    Chinchilla's form has it in closed form; for any other law N is searched to nine digits.
    """
    best = _closed_form if isinstance(law.outer, Chinchilla) else _searched
    size = best(law, flops, models)
    step = 0.05
    ends = [math.log(best(law, flops * math.exp(sign * step), models)) for sign in (-1, 1)]
    exponent = (ends[1] - ends[0]) / (2 * step)
    tokens = float(costs.tokens_for(flops, size * models.unroll()))
    loss = float(law(models.points(np.array(size), np.array(tokens))))
    return Allocation(flops, size, tokens, loss, exponent, 1.0 - exponent)


def _closed_form(law: ScalingLaw, flops: float, models: Proportions) -> float:
    """Return N* of L = A (k N)^alpha + B D^beta + c with D = C / (6 u N): a power of C."""
    c, one = law.coefficients, np.array(1e9)
    worth = float(law.multiplier(models.points(one, one)))  # k = N_eff / N_act
    alpha, beta = -c["alpha"], -c["beta"]
    if not (alpha > 0 and beta > 0 and c["A"] > 0 and c["B"] > 0):
        raise _no_optimum(law, flops)
    size = c["A"] * (worth / law.units.parameters) ** -alpha
    data = c["B"] * law.units.tokens**beta
    budget = float(costs.tokens_for(flops, models.unroll()))
    return float((alpha * size / (beta * data) * budget**beta) ** (1 / (alpha + beta)))


def _searched(law: ScalingLaw, flops: float, models: Proportions) -> float:
    """Return N* by a grid over ten decades around the square root of the budget, refined by Brent's method."""
    from scipy.optimize import minimize_scalar  # slow to import, and few laws need it

    middle = 0.5 * math.log(flops / costs.TRAIN)
    grid = middle + np.linspace(-math.log(1e5), math.log(1e5), 201)

    def loss(log_N: Any) -> FloatArray:
        N = np.exp(np.asarray(log_N))
        return law(models.points(N, np.asarray(costs.tokens_for(flops, N * models.unroll()))))

    best = int(np.argmin(loss(grid)))
    if best in (0, len(grid) - 1):
        raise _no_optimum(law, flops)
    step = float(grid[1] - grid[0])
    # The search runs over the distance to the best grid point, which keeps its tolerance absolute.
    offset = minimize_scalar(
        lambda x: float(loss(grid[best] + x)), bounds=(-step, step), method="bounded", options={"xatol": 1e-9}
    )
    return math.exp(grid[best] + offset.x)


def _no_optimum(law: ScalingLaw, flops: float) -> InputError:
    return InputError(
        f"{law.name}: at {format_power(flops)} FLOPs its loss has no minimum between few and many parameters"
    )


def leverage(law: ScalingLaw, flops: float, models: Proportions, reference: Proportions = DENSE) -> float:
    """Return the efficiency leverage: how many times the budget a compute-optimal reference needs for the same loss.

    ``reference`` is dense and without recurrence unless given. Infinite where no budget up to a million times larger
    reaches that loss.
    """
    target = compute_optimal(law, flops, models).loss

    def below(factor: FloatArray) -> bool:
        return compute_optimal(law, flops * float(factor), reference).loss > target

    most = 1e6
    return math.inf if below(np.asarray(most)) else float(geometric_bisection(below, 1e-3, most, rounds=50))


def allocations(law: ScalingLaw, flops: Sequence[float], models: Proportions = DENSE, level: float = 0.9) -> Table:
    """Return N*(C), D*(C), their exponents and the loss for several budgets.

    Where the law has resampled laws, ``_low`` and ``_high`` columns span ``level`` of them; they are the
    uncertainty of the curve. ``extrapolated`` names the axes on which the optimum leaves the fitted range.
    """
    ends = tails(level)
    records = []
    for budget in flops:
        best = compute_optimal(law, budget, models)
        record: dict[str, Any] = asdict(best)
        refits = [asdict(compute_optimal(other, budget, models)) for other in law.resampled_laws()]
        for name in ("size", "tokens", "loss", "size_exponent", "token_exponent") if refits else ():
            spread = np.quantile([refit[name] for refit in refits], ends)
            record |= {f"{name}_low": float(spread[0]), f"{name}_high": float(spread[1])}
        outside = law.extrapolated(models.points(np.array(best.size), np.array(best.tokens)))
        record["extrapolated"] = " ".join(axis for axis, flag in outside.items() if flag.any())
        records.append(record)
    return Table.from_records(records)
