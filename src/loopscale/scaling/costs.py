"""What a looped model costs and what it is worth: N_unroll, N_eff, FLOPs, and the best use of a training budget.

Every formula of compute stands here once. Arguments are numbers or arrays that broadcast; whole numbers stay whole.
Counts leave out embeddings, as the paper's do; a law that counts them gives its compute-optimal sizes with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.tables import Table

if TYPE_CHECKING:
    from loopscale.scaling.law import ScalingLaw
    from loopscale.scaling.points import Points

TRAIN = 6
"""FLOPs of training for each unrolled parameter and token: two forward, four backward."""
INFERENCE = 2
"""FLOPs of generating one token, for each unrolled parameter."""


def unrolled(active: Any, loop: Any, recurrence: Any) -> Any:
    """Return N_unroll = N_act + (R - 1) N_loop: the parameters a token passes through, repeated passes counted."""
    return active + (recurrence - 1) * loop


def train_flops(N_unroll: Any, tokens: Any = 1) -> Any:
    """Return 6 N_unroll D: the training compute on ``tokens``, or of one token."""
    return TRAIN * N_unroll * tokens


def inference_flops(N_unroll: Any) -> Any:
    """Return 2 N_unroll: the compute of one generated token."""
    return INFERENCE * N_unroll


def tokens_for(flops: Any, N_unroll: Any, served: Any = 0.0) -> Any:
    """Return D = C / (6 N_unroll), less what serving ``served`` tokens costs of the same budget."""
    return flops / train_flops(N_unroll) - served / (TRAIN / INFERENCE)


def generation_seconds(bytes_read: Any, flops: Any, bandwidth: float, peak: float = math.inf) -> Any:
    """Return the least time of one generated token, a roofline: reading at ``bandwidth`` or computing at ``peak``."""
    return np.maximum(bytes_read / bandwidth, flops / peak)


@dataclass(frozen=True)
class Design:
    """The proportions of the models among which a compute-optimal size is looked for."""

    experts: float = 1.0
    """E"""
    recurrence: float = 1.0
    """R"""
    loop_share: float = 0.0
    """N_loop / N_act; above 0 where R is above 1."""
    m: float = 1.0
    """N_act / N_total"""

    def unroll(self) -> float:
        """Return N_unroll / N_act."""
        return float(unrolled(1.0, self.loop_share, self.recurrence))

    def points(self, N: FloatArray, D: FloatArray) -> Points:
        """Return models of these proportions as a law takes them."""
        from loopscale.scaling.points import Points

        return Points(N, D, self.recurrence, self.experts, self.loop_share * N, N / self.m)


DENSE = Design()


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


def compute_optimal(law: ScalingLaw, flops: float, design: Design = DENSE) -> Allocation:
    """Return N*(C) and D*(C): the lowest loss of models of one proportion at C = 6 N_unroll D.

    Chinchilla's form has it in closed form; for any other law N is searched to nine digits.
    """
    best = _closed_form if law.outer.name == "chinchilla" else _searched
    size = best(law, flops, design)
    step = 0.05
    ends = [math.log(best(law, flops * math.exp(sign * step), design)) for sign in (-1, 1)]
    exponent = (ends[1] - ends[0]) / (2 * step)
    tokens = float(tokens_for(flops, size * design.unroll()))
    loss = float(law(design.points(np.array(size), np.array(tokens))))
    return Allocation(flops, size, tokens, loss, exponent, 1.0 - exponent)


def _closed_form(law: ScalingLaw, flops: float, design: Design) -> float:
    """Return N* of L = A (k N)^alpha + B D^beta + c with D = C / (6 u N): a power of C."""
    c, one = law.coefficients, np.array(1e9)
    worth = float(law.multiplier(design.points(one, one)))  # k = N_eff / N_act
    alpha, beta = -c["alpha"], -c["beta"]
    if not (alpha > 0 and beta > 0 and c["A"] > 0 and c["B"] > 0):
        raise _no_optimum(law, flops)
    size = c["A"] * (worth / law.units.parameters) ** -alpha
    data = c["B"] * law.units.tokens**beta
    budget = float(tokens_for(flops, design.unroll()))
    return float((alpha * size / (beta * data) * budget**beta) ** (1 / (alpha + beta)))


def _searched(law: ScalingLaw, flops: float, design: Design) -> float:
    """Return N* by a grid over ten decades around the square root of the budget, refined by golden sections."""
    middle = 0.5 * math.log(flops / TRAIN)
    grid = middle + np.linspace(-math.log(1e5), math.log(1e5), 201)

    def loss(log_N: Any) -> FloatArray:
        N = np.exp(np.asarray(log_N))
        return law(design.points(N, np.asarray(tokens_for(flops, N * design.unroll()))))

    best = int(np.argmin(loss(grid)))
    if best in (0, len(grid) - 1):
        raise _no_optimum(law, flops)
    low, high, ratio = float(grid[best - 1]), float(grid[best + 1]), (math.sqrt(5) - 1) / 2
    for _ in range(45):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        at_left, at_right = loss([left, right])
        low, high = (low, right) if at_left < at_right else (left, high)
    return math.exp((low + high) / 2)


def _no_optimum(law: ScalingLaw, flops: float) -> InputError:
    return InputError(f"{law.name}: at {flops:g} FLOPs its loss has no minimum between few and many parameters")


def leverage(law: ScalingLaw, flops: float, design: Design, reference: Design = DENSE) -> float:
    """Return the efficiency leverage: how many times the budget a compute-optimal reference needs for the same loss.

    ``reference`` is dense and without recurrence unless given. Infinite where no budget up to a million times larger
    reaches that loss.
    """
    target = compute_optimal(law, flops, design).loss

    def reaches(factor: float) -> bool:
        return compute_optimal(law, flops * factor, reference).loss <= target

    low, high = math.log(1e-3), math.log(1e6)
    if not reaches(math.exp(high)):
        return math.inf
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if reaches(math.exp(middle)) else (middle, high)
    return math.exp((low + high) / 2)


def allocations(law: ScalingLaw, flops: Sequence[float], design: Design = DENSE, level: float = 0.9) -> Table:
    """Return N*(C), D*(C), their exponents and the loss for several budgets.

    Where the law carries resampled laws, ``_low`` and ``_high`` columns span ``level`` of them; they are the
    uncertainty of the law alone. ``extrapolated`` names the axes on which the optimum leaves the fitted range.
    """
    if not 0 < level < 1:
        raise InputError(f"level is {level}; it should lie between 0 and 1, as 0.9")
    records = []
    for budget in flops:
        best = compute_optimal(law, budget, design)
        record: dict[str, Any] = asdict(best)
        refits = [asdict(compute_optimal(other, budget, design)) for other in law.resampled_laws()]
        for name in ("size", "tokens", "loss", "size_exponent", "token_exponent") if refits else ():
            spread = np.quantile([refit[name] for refit in refits], [(1 - level) / 2, (1 + level) / 2])
            record |= {f"{name}_low": float(spread[0]), f"{name}_high": float(spread[1])}
        outside = law.extrapolated(design.points(np.array(best.size), np.array(best.tokens)))
        record["extrapolated"] = " ".join(axis for axis, flag in outside.items() if flag.any())
        records.append(record)
    return Table.from_records(records)
