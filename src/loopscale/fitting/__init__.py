"""Observations in, a fitted law with calibrated uncertainty out."""

from loopscale.fitting.data.observations import Observations
from loopscale.fitting.data.public import load_public, load_table, simulate_sweep
from loopscale.fitting.estimate import choose_form, fit
from loopscale.fitting.forecasting import Forecast, Forecasts, forecast
from loopscale.fitting.groups import GroupedFit, fit_groups
from loopscale.fitting.likelihood import Profile, correlations, identification, likelihood_profile
from loopscale.fitting.noise import Noise, intraclass_correlation
from loopscale.fitting.prediction import LossPrediction
from loopscale.fitting.resample import Scheme
from loopscale.fitting.residuals import outliers, residuals_by_axis
from loopscale.fitting.result import Fit
from loopscale.fitting.search import Recipe
from loopscale.fitting.sensitivity import sensitivity
from loopscale.fitting.warnings import unidentified

__all__ = [
    "Fit",
    "Forecast",
    "Forecasts",
    "GroupedFit",
    "LossPrediction",
    "Noise",
    "Observations",
    "Profile",
    "Recipe",
    "Scheme",
    "choose_form",
    "correlations",
    "fit",
    "fit_groups",
    "forecast",
    "identification",
    "intraclass_correlation",
    "likelihood_profile",
    "load_public",
    "load_table",
    "outliers",
    "residuals_by_axis",
    "sensitivity",
    "simulate_sweep",
    "unidentified",
]
