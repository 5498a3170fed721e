"""Noise of the losses about a law: robust scales, and its parts within a run and between runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.tables import Table

if TYPE_CHECKING:
    from loopscale.fitting.result import Fit

Runs = NDArray[np.str_]
"""The run of each row."""
TYPICAL_NOISE, NOISE_WEIGHT = 0.005, 2.0
"""Run-to-run noise of ln loss in public sweeps, and the degrees of freedom that this experience counts for."""
WINSOR = 4.0
"""Residuals count up to so many robust deviations: one diverged run is an outlier, neither a trend nor noise."""


def residual_scale(residuals: FloatArray, delta: float, free: int) -> float:
    """Return the scale that Huber's estimate has: sqrt(mean psi^2) / mean psi', with p degrees of freedom taken off."""
    inner = max(float(np.mean(np.abs(residuals) <= delta)), 1.0 / len(residuals))
    pull = np.clip(residuals, -delta, delta)
    left = max(len(residuals) - free, 1)
    return float(np.sqrt(np.sum(pull**2) / left)) / inner


def robust_deviation(residuals: FloatArray) -> float:
    """Return the standard deviation by the median absolute residual."""
    return 1.4826 * float(np.median(np.abs(residuals)))


def robust_scale(residuals: FloatArray, free: int) -> float:
    """Return a robust standard deviation of the noise, with the degrees of freedom of the fit taken off.

    A fit by absolute values passes through about as many rows as it has coefficients; those do not show the noise.
    """
    left = np.sort(np.abs(residuals))[min(free, len(residuals) - 1) :]
    return robust_deviation(left)


def winsorised(residuals: FloatArray, free: int) -> FloatArray:
    """Return the residuals cut off at some robust deviations."""
    limit = WINSOR * robust_scale(residuals, free)
    return np.clip(residuals, -limit, limit)


def intraclass_correlation(fit: Fit) -> float:
    """Return the share of the residuals' variance that rows of one run have in common (intraclass correlation)."""
    return _intraclass(fit.residuals, fit.observations.run)


def _intraclass(residuals: FloatArray, run: Runs) -> float:
    names, which, sizes = np.unique(run, return_inverse=True, return_counts=True)
    rows, groups = len(which), len(names)
    if groups < 2 or rows == groups:
        return 0.0
    residuals = residuals - residuals.mean()
    means = np.bincount(which, residuals) / sizes
    between = float(sizes @ means**2) / (groups - 1)
    within = float(np.sum((residuals - means[which]) ** 2)) / (rows - groups)
    typical_size = (rows - float(sizes @ sizes) / rows) / (groups - 1)
    return float(np.clip((between - within) / max(between + (typical_size - 1) * within, 1e-300), 0.0, 1.0))


def run_noise(residuals: FloatArray, run: Runs, free: int) -> float:
    """Return the standard deviation of a new run's ln loss about the law, shrunk to experience where data are few."""
    rows = len(residuals)
    repeated = rows / len(np.unique(run)) - 1
    independent = rows / (1 + repeated * _intraclass(residuals, run))
    scale = robust_scale(residuals, free)
    if rows > free and independent > free:
        scale *= np.sqrt(independent / (independent - free) * (rows - free) / rows)
    return _shrunk(scale, max(independent - free, 0.0))


def weighted_noise(residuals: FloatArray, weight: FloatArray, free: int) -> float:
    """Return the standard deviation of runs of which some count more, shrunk to experience as ``run_noise`` is."""
    sizes = np.abs(residuals)
    order = np.argsort(sizes)
    passed = np.cumsum(weight[order])
    median = float(sizes[order][np.searchsorted(passed, 0.5 * passed[-1])])
    rows = len(residuals)
    effective = float(weight.sum() ** 2 / np.sum(weight**2))
    degrees = max(rows - free, 0) * effective / rows
    scale = 1.4826 * median * np.sqrt(rows / max(rows - free, 1))
    return _shrunk(scale, degrees)


def _shrunk(deviation: float, degrees: float) -> float:
    """Return a standard deviation of so many degrees of freedom, shrunk to that of public sweeps."""
    return float(np.sqrt((NOISE_WEIGHT * TYPICAL_NOISE**2 + degrees * deviation**2) / (NOISE_WEIGHT + degrees)))


@dataclass(frozen=True)
class Noise:
    """Standard deviations of ln loss about the law: of a single observation, and of a whole run."""

    observation: float
    run: float
    """Of the shift that all observations of a run share."""
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if not (np.isfinite([self.observation, self.run]).all() and self.observation > 0 and self.run >= 0):
            raise InputError(f"noise is {self.observation} and {self.run} a run; the first should be above zero")

    @classmethod
    def of(cls, fit: Fit) -> Noise:
        """Split the residuals' variance into that within runs and that between them; diverged runs do not count."""
        return cls.split(fit.residuals[fit.sound], fit.observations.run[fit.sound], len(fit.free))

    @classmethod
    def split(cls, residuals: FloatArray, run: Runs, free: int) -> Noise:
        """Split the variance of residuals by run, ``free`` degrees of freedom taken off."""
        _, which, rows = np.unique(run, return_inverse=True, return_counts=True)
        n, k = len(residuals), len(rows)
        if n <= free:
            raise InputError(f"{n} rows leave no residual for {free} coefficients; give the noise")
        if not free < k < n:  # the two are not identifiable separately, and all of it goes to the observations
            return cls(float(np.sqrt(residuals @ residuals / (n - free))), 0.0)
        cut = winsorised(residuals, free)
        mean = np.bincount(which, cut) / rows
        within = float(np.sum((cut - mean[which]) ** 2) / (n - k))
        between = float(np.sum(rows * mean**2) / (k - free))
        common = (n - np.sum(rows**2) / n) / (k - 1)
        return cls(float(np.sqrt(within)), float(np.sqrt(max(between - within, 0.0) / common)))

    @property
    def new_run_variance(self) -> float:
        """The variance of a new run's final ln loss."""
        return self.observation**2 + self.run**2


def noise_components(residuals: FloatArray, run: Runs, free: int) -> Noise | None:
    """Split the noise of a new run into that within a run and that between runs; None where the data cannot show them.

    They can where runs have several rows and outnumber the coefficients. The shares are those of an analysis of
    variance by run, the coefficients' degrees of freedom taken off between the runs; the total is ``run_noise``,
    which predictive intervals use.
    """
    if not free < len(np.unique(run)) < len(residuals):
        return None
    parts = Noise.split(residuals, run, free)
    share = run_noise(residuals, run, free) / float(np.sqrt(parts.new_run_variance))
    return Noise(parts.observation * share, parts.run * share)


def run_effects(fit: Fit) -> Table:
    """Return how far each run lies above the law in ln loss, as a random effect: shrunk to zero by its uncertainty.

    ``effect`` is the mean residual of the run's rows times between / (between + within / rows), variances all.
    """
    names, run, rows = np.unique(fit.observations.run, return_inverse=True, return_counts=True)
    parts = fit.noise_components
    if parts is None:
        raise InputError(
            f"run effects need several rows in each run and more runs than the {len(fit.free)} coefficients; "
            f"it has {len(run)} rows of {len(names)} runs",
            where=fit.observations.source,
        )
    mean = np.bincount(run, -fit.residuals) / rows
    shrink = parts.run**2 / np.maximum(parts.run**2 + parts.observation**2 / rows, 1e-300)
    errors = parts.run * np.sqrt(np.maximum(1 - shrink, 0.0))
    return Table.from_arrays((len(names),), run=names, rows=rows, effect=shrink * mean, error=errors)
