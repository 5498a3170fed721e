"""Observations in, a fitted law with honest uncertainty out."""

from loopscale.fit.datasets import load_public, simulate_sweep
from loopscale.fit.diagnostics import (
    correlations,
    fitted_span,
    identification,
    mid_schedule,
    outliers,
    residuals_by_axis,
    run_share,
    unidentified,
    warnings,
)
from loopscale.fit.fitting import fit
from loopscale.fit.observations import Observations
from loopscale.fit.profile import Profile, profile
from loopscale.fit.result import Fit, Recipe, Scheme
from loopscale.fit.summary import r_squared, summary, values
from loopscale.fit.uncertainty import coefficient_intervals, prediction_interval, resample

__all__ = [
    "Fit",
    "Observations",
    "Profile",
    "Recipe",
    "Scheme",
    "coefficient_intervals",
    "correlations",
    "fit",
    "fitted_span",
    "identification",
    "load_public",
    "mid_schedule",
    "outliers",
    "prediction_interval",
    "profile",
    "r_squared",
    "resample",
    "residuals_by_axis",
    "run_share",
    "simulate_sweep",
    "summary",
    "unidentified",
    "values",
    "warnings",
]
