"""Observations in, a fitted law with honest uncertainty out."""

from loopscale import make_callable
from loopscale.fit.data.public import load_public, simulate_sweep
from loopscale.fit.data.read import Observations
from loopscale.fit.diagnose import (
    Profile,
    correlations,
    fitted_span,
    identification,
    mid_schedule,
    outliers,
    profile,
    residuals_by_axis,
    run_share,
    unidentified,
    warnings,
)
from loopscale.fit.fitting import Fit, Recipe, Scheme, fit
from loopscale.fit.resample import coefficient_intervals, prediction_interval, resample
from loopscale.fit.summary import r_squared, summary, values

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

make_callable(__name__, fit)
