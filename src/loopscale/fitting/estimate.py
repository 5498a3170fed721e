"""Fit a law to observations: choose the form, fit it, and resample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from loopscale.core.errors import InputError, choice
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.ladder import fit_best_form
from loopscale.fitting.problem import NOTHING
from loopscale.fitting.result import RESAMPLES, Fit
from loopscale.fitting.search import Recipe
from loopscale.fitting.solve import DELTA, STARTS, Procedure, fit_form
from loopscale.scaling import OuterLaw, RecurrenceMapping, outer_law
from loopscale.scaling import mapping as find_mapping

REPEATED, HARMFUL = 1.02, 16.0
"""Epochs from which the law is chosen with repeated data, and with a loss that rises again."""


def fit(
    data: Any,
    *,
    outer: str | OuterLaw | None = None,
    mapping: str | RecurrenceMapping | None = None,
    fixed: Mapping[str, float] = NOTHING,
    bounds: Mapping[str, tuple[float, float]] = NOTHING,
    tie: Mapping[str, str] = NOTHING,
    delta: float | None = DELTA,
    recipe: Recipe | str = Recipe.DEFAULT,
    starts: int = STARTS,
    warm: Mapping[str, float] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Fit:
    """Fit a scaling law to observed losses: ``fit("runs.csv")`` is enough.

    ``data`` is a path (CSV, TSV, JSON lines, Parquet), a data frame of pandas, polars or pyarrow, the name of a public
    sweep, or ``Observations``; ``Observations.of("runs.csv", columns=..., keep=...)`` has the options of reading.
    A column ``weight``, or the noise of each loss in a column ``loss_std``, weights the rows. The form follows from
    the data: with experts and recurrence where they vary. Where the data do not determine that form, or it leaves a
    trend in the residuals, others are tried on held-out runs (``Fit.ladder`` has them). ``outer`` and ``mapping``
    choose one.

    Minimises the sum of Huber(``delta``) over the residuals of ln loss; a large delta means least squares, and None
    estimates it from the residuals. ``fixed`` holds coefficients at a value, ``bounds`` limits their range (both with
    counts in billions), ``tie={"alpha": "beta"}`` gives one the value of another. Coefficients with a
    prior, those of the general mapping's curve, are pulled towards it; ``recipe="no-prior"`` leaves that out.

    One start is staged (the base law on R = 1 first) or at ``warm``; the other ``starts`` - 1 are random over the whole
    box. ``recipe="paper"`` runs the paper's procedure instead, from one start.

    The law is refitted on ``resamples`` resampled data sets, whole runs drawn with replacement; 0 leaves that out.
    ``Fit.resample`` has the options of resampling.
    """
    observations = Observations.of(data)
    check_resamples(resamples)
    procedure = Procedure(delta, choice(Recipe, recipe, "recipe"), starts, seed)
    form, recurrence = choose_form(observations, outer, mapping)
    stated = outer is not None or mapping is not None or fixed or bounds or tie
    if stated or procedure.recipe is not Recipe.DEFAULT:
        result = fit_form(observations, form, recurrence, procedure, warm=warm, fixed=fixed, bounds=bounds, tie=tie)
    else:
        result = fit_best_form(observations, form, recurrence, procedure, warm)
    return result.resample(resamples, seed=seed) if resamples else result


def check_resamples(resamples: int) -> None:
    """Refuse a negative number of refits."""
    if resamples < 0:
        raise InputError(f"`resamples` is {resamples}", remedy="it should be zero (none) or more")


def choose_form(
    data: Observations, outer: str | OuterLaw | None = None, mapping: str | RecurrenceMapping | None = None
) -> tuple[OuterLaw, RecurrenceMapping]:
    """Return the form to fit: the one given, else the richest that the data can determine.

    Experts or passes that are the same in every row have no term: such a law answers for that value alone.
    """
    points = data.points
    if outer is None:
        outer = "joint-moe" if np.ptp(points.experts) > 0 else "chinchilla"
        epochs = float(np.max(points.tokens / points.unique))
        outer += "+overfit" if epochs > HARMFUL else "+repetition" if epochs > REPEATED else ""
    if mapping is None:
        sparse = points.total is not None and bool((points.m < 1).any())
        looped = "sparsity-conditional" if sparse else "bounded"
        mapping = looped if np.ptp(points.recurrence) > 0 else "none"
    return outer_law(outer), find_mapping(mapping) if isinstance(mapping, str) else mapping
