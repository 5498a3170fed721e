"""Observations in, a fitted law with calibrated uncertainty out."""

from loopscale import make_callable
from loopscale.fit.data.public import load_public, simulate_sweep
from loopscale.fit.data.read import Observations
from loopscale.fit.diagnose import intraclass_correlation, outliers, residuals_by_axis, unidentified
from loopscale.fit.fitting import Fit, Prediction, Recipe, fit
from loopscale.fit.likelihood import Profile, correlations, identification, likelihood_profile
from loopscale.fit.solver import Scheme

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
    "outliers",
    "residuals_by_axis",
    "simulate_sweep",
    "unidentified",
]

make_callable(__name__, fit)
