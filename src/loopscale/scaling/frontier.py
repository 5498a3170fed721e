"""The compute-optimal frontier L*(C) = c + a C^-b: the lowest loss that each training budget reaches.

A frontier is stored as draws, so that a law file can hold it and every surface can evaluate it without the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.scaling import costs
from loopscale.scaling.points import Points
from loopscale.scaling.proportions import DENSE, Proportions

SIZES = 241
"""Sizes among which the lowest loss of a budget is searched."""
REACH = 7.0
"""They span e^7 below and above the square root of C / 6."""
NEARBY = 113
"""Sizes among which the best one of a model's own proportions is searched."""
NEAR_FRONTIER = 0.07
"""A run whose loss lies so far above the frontier, in ln loss, takes half of the frontier's correction."""
BUDGETS = 48
"""Budgets between which a law's own frontier is interpolated, where there are more points than that."""


@dataclass(frozen=True)
class StatedCost:
    """Training FLOPs of a run as its file states them: 6 N_unroll D times a power of N. The power is 1 by 6ND."""

    factor: float = 1.0
    """Stated FLOPs over 6 N_unroll D at a billion parameters."""
    exponent: float = 0.0
    """How that ratio grows with N: attention and output head weigh more in small models."""
    smallest: float = 1.0
    largest: float = 1e18
    """The sizes between which the ratio was seen; it stays as it is at the ends."""

    def ratio(self, N: ArrayLike) -> FloatArray:
        """Return stated FLOPs over 6 N_unroll D at a size."""
        return np.asarray(self.factor * (np.clip(N, self.smallest, self.largest) / 1e9) ** self.exponent)

    def flops(self, points: Points) -> FloatArray:
        """Return the training FLOPs of models."""
        return points.train_flops * self.ratio(points.active)

    def tokens(self, flops: ArrayLike, N: ArrayLike, unroll: float = 1.0) -> FloatArray:
        """Return the tokens that a budget pays for."""
        return np.asarray(costs.tokens_for(flops, np.asarray(N) * unroll)) / self.ratio(N)


BY_SIZE = StatedCost()


@dataclass(frozen=True, eq=False)
class Frontier:
    """L*(C) of models of one proportion, as draws of its three coefficients."""

    flops: float
    """The largest training compute of the data, at which the draws state the loss and its slope."""
    draws: tuple[tuple[float, float, float], ...]
    """Loss at ``flops`` in nats, its slope there (-d ln L / d ln C), and the floor c as a share of that loss."""
    runs: int = 0
    """Runs within 1% of the frontier, which mainly determine it."""
    size: float | None = None
    """N* at ``flops`` by isoFLOP minima; None where the runs do not share budgets."""
    size_exponent: float | None = None
    """d ln N* / d ln C by isoFLOP minima."""
    models: Proportions = DENSE
    cost: StatedCost = BY_SIZE
    noise: float | None = None
    """Standard deviation of a run near the frontier about the forecast, in ln loss; None in files of earlier versions.
    It is often below the noise about the law, which the runs far from the frontier determine."""

    def __post_init__(self) -> None:
        rows = np.asarray(self.draws, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != 3 or not len(rows) or not np.isfinite(rows).all():
            raise InputError("draws should be rows of three finite numbers", where="frontier")
        if (rows[:, :2] <= 0).any() or (rows[:, 2] < 0).any() or (rows[:, 2] >= 1).any():
            raise InputError(
                "draws should hold a loss and a slope above zero, and a floor share below 1", where="frontier"
            )
        if not self.flops > 0:
            raise InputError(f"flops is {self.flops}; it should be above zero", where="frontier")
        object.__setattr__(self, "draws", tuple(map(tuple, rows.tolist())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frontier) and asdict(self) == asdict(other)

    def __hash__(self) -> int:
        return hash((self.flops, self.draws[0], len(self.draws)))

    @cached_property
    def _columns(self) -> FloatArray:
        return np.asarray(self.draws).T

    def log_losses(self, flops: ArrayLike) -> FloatArray:
        """Return ln L*(C) of each draw: one leading axis more than ``flops`` has."""
        x = np.log(np.asarray(flops, float) / self.flops)
        loss, slope, floor = (column.reshape(-1, *([1] * x.ndim)) for column in self._columns)
        return np.asarray(np.log(loss) + np.log(floor + (1 - floor) * np.exp(-slope / (1 - floor) * x)))

    def log_loss(self, flops: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return ln L*(C), the mean over the draws, and its standard deviation."""
        drawn = self.log_losses(flops)
        return drawn.mean(axis=0), drawn.std(axis=0)

    def optimal_size(self, flops: ArrayLike, by_law: FloatArray) -> FloatArray:
        """Return N*(C): half way, in its logarithm, between the law's and that of isoFLOP minima, if there are any."""
        if self.size is None or self.size_exponent is None:
            return by_law
        minima = self.size * (np.asarray(flops, float) / self.flops) ** self.size_exponent
        return np.asarray(np.sqrt(by_law * minima))

    def coefficients(self) -> dict[str, float]:
        """Return c, a and b of L* = c + a (C / flops)^-b at the mean of the draws, and the slope at ``flops``."""
        loss, slope, floor = self._columns.mean(axis=1)
        return {
            "c": float(loss * floor),
            "a": float(loss * (1 - floor)),
            "b": float(slope / (1 - floor)),
            "slope": float(slope),
        }


def lowest(
    loss: Callable[[Points], FloatArray], flops: ArrayLike, models: Proportions = DENSE, cost: StatedCost = BY_SIZE
) -> tuple[FloatArray, FloatArray]:
    """Return the lowest ln loss of each budget over sizes of one proportion, and the size that reaches it.

    Not a number where the loss has no lowest point between the smallest and the largest size.
    """
    C = np.asarray(flops, float).ravel()
    N = np.sqrt(C[:, None] / costs.TRAIN) * np.exp(np.linspace(-REACH, REACH, SIZES))
    values = np.log(loss(models.points(N, cost.tokens(C[:, None], N, models.unroll()))))
    best = np.clip(values.argmin(axis=1), 1, SIZES - 2)
    rows = np.arange(len(C))
    left, middle, right = (values[rows, best + k] for k in (-1, 0, 1))
    bend = left - 2 * middle + right
    with np.errstate(invalid="ignore", divide="ignore"):
        offset = np.where(bend > 0, 0.5 * (left - right) / bend, 0.0)
    step = 2 * REACH / (SIZES - 1)
    is_minimum = middle <= np.minimum(left, right)
    log_loss = np.where(is_minimum, middle - 0.25 * (left - right) * offset, np.nan)
    size = np.where(is_minimum, N[rows, best] * np.exp(offset * step), np.nan)
    shape = np.shape(flops)
    return log_loss.reshape(shape), size.reshape(shape)


def lowest_between(
    loss: Callable[[Points], FloatArray], flops: FloatArray, models: Proportions, cost: StatedCost
) -> FloatArray:
    """Return the lowest ln loss of many budgets: interpolated where they are more than a few."""
    C = np.asarray(flops, float)
    if C.size <= BUDGETS:
        return lowest(loss, C, models, cost)[0]
    x = np.linspace(np.log(C.min()), np.log(C.max()) + 1e-9, BUDGETS)
    return np.asarray(np.interp(np.log(C), x, lowest(loss, np.exp(x), models, cost)[0]))


def above_optimum(loss: Callable[[Points], FloatArray], points: Points, cost: StatedCost = BY_SIZE) -> FloatArray:
    """Return by how much the ln loss of each model exceeds that of the best size of its proportions and compute.

    Repetition counts too: the best size sees every token once.
    """
    factors = np.exp(np.linspace(-REACH, REACH, NEARBY))

    def wide(values: FloatArray) -> FloatArray:
        return np.broadcast_to(values, points.shape)[..., None]

    sizes = wide(points.active) * factors
    tokens = costs.tokens_for(wide(cost.flops(points)), sizes * wide(points.unrolled / points.active))
    others = Points(
        sizes,
        np.asarray(tokens) / cost.ratio(sizes),
        wide(points.recurrence),
        wide(points.experts),
        None if points.loop is None else wide(points.loop) * factors,
        None if points.total is None else wide(points.total) * factors,
    )
    best = np.log(loss(others)).min(axis=-1)
    return np.asarray(np.maximum(np.log(loss(points)) - best, 0.0))


def closeness(above: FloatArray) -> FloatArray:
    """Return the frontier's share in the forecast of runs so far ``above`` the best ln loss of their compute."""
    return np.asarray(1 / (1 + (above / NEAR_FRONTIER) ** 2))


def rounded_draws(rows: Sequence[Sequence[float]]) -> tuple[tuple[float, float, float], ...]:
    """Return draws with seven digits, which keep the file small."""
    return tuple((float(f"{a:.7g}"), float(f"{b:.7g}"), float(f"{c:.7g}")) for a, b, c in rows)
