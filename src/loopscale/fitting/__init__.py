"""Observations in, a fitted law with calibrated uncertainty out."""

from loopscale.fitting.data.public import load_public, load_table, simulate_sweep
from loopscale.fitting.data.read import Observations
from loopscale.fitting.diagnose import intraclass_correlation, outliers, residuals_by_axis, unidentified
from loopscale.fitting.fitting import Fit, Prediction, Recipe, fit
from loopscale.fitting.likelihood import Profile, correlations, identification, likelihood_profile
from loopscale.fitting.solver import Scheme

__all__ = [
    "Fit",
    "Observations",
    "Prediction",
    "Profile",
    "Recipe",
    "Scheme",
    "correlations",
    "fit",
    "identification",
    "intraclass_correlation",
    "likelihood_profile",
    "load_public",
    "load_table",
    "outliers",
    "residuals_by_axis",
    "simulate_sweep",
    "unidentified",
]
