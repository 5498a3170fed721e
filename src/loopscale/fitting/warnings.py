"""What a reader must know before believing a fit, each in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from loopscale.core.quantities import counted
from loopscale.fitting.covariance import fit_covariance
from loopscale.fitting.lack_of_fit import lack_of_fit
from loopscale.fitting.residuals import outlier_limit, outlying_rows

if TYPE_CHECKING:
    from loopscale.fitting.data.observations import Observations
    from loopscale.fitting.result import Fit

POOR = 0.9
"""A law that explains less of the losses' variance than this does not describe them."""
UNIDENTIFIED = 0.25
"""A coefficient whose standard error is this part of its whole search range is not identified."""


def warnings_of(fit: Fit) -> tuple[str, ...]:
    """Return what a reader of the fit must know, each in a sentence."""
    return (*_misfits(fit), *(f"degenerate: {reason}" for reason in fit.degenerate), *_other_warnings(fit))


def law_note(fit: Fit) -> str:
    """Return the warnings that a law carries as its note; its degeneracy has a field of its own."""
    return "; ".join((*_misfits(fit), *_other_warnings(fit)))


def _misfits(fit: Fit) -> Iterator[str]:
    """Say where the law misses its own data; that comes before anything else."""
    if (share := fit.r_squared) < POOR:
        yield f"lack of fit: the law explains only {max(share, 0.0):.0%} of the variance of the losses"
    if (trend := lack_of_fit(fit)) is not None and trend.significant:
        yield (
            f"lack of fit: residuals have a trend along {trend.along}, up to {trend.size:.1%} of the loss "
            f"(p = {trend.p_value:.3f}); predictions beyond the data will drift"
        )


def _other_warnings(fit: Fit) -> Iterator[str]:
    data = fit.observations
    if fit.at_bound:
        yield f"on a bound: {', '.join(f'{n} = {fit.coefficients[n]:.4g}' for n in fit.at_bound)}"
    if names := unidentified(fit):
        yield f"not identified by these data: {', '.join(names)}; predictions inside the range do not need them"
    if mid_schedule(data):
        yield f"{mid_schedule(data)} of {len(data)} rows are in mid-schedule; their losses are not final"
    elif data.finished is None and (earlier := len(data) - len(data.runs)):
        yield (
            f"{earlier} of {len(data)} rows come before the last row of their run; unless the learning rate was "
            "annealed for each, their losses are in mid-schedule (a column `finished` or `annealed` says so)"
        )
    if rows := outlying_rows(fit):
        limit = outlier_limit(len(data), len(fit.free))
        worst = f"{'the worst ' if len(rows) > 1 else ''}in {data.place(rows[0])}"
        yield f"{counted(len(rows), 'outlier')} beyond {limit:.2g} deviations, {worst}"
    if not fit.outer.uses_experts and np.ptp(data.points.experts) > 0:
        yield "E varies in the data, but the law does not know experts"
    if not fit.mapping.loops and data.points.recurrence.max() > 1:
        yield "some rows have R > 1, but the law does not know recurrence"
    if fit.agreeing < fit.starts:
        yield f"{fit.starts - fit.agreeing} of {fit.starts} starts ended above the best objective"


def unidentified(fit: Fit) -> tuple[str, ...]:
    """Return the coefficients that the data leave open, those on a bound aside."""
    problem, errors = fit.problem, fit_covariance(fit).errors
    wide = zip(fit.free, problem.width, strict=True)
    return tuple(name for name, width in wide if name in errors and errors[name] > UNIDENTIFIED * width)


def mid_schedule(data: Observations) -> int:
    """Return how many rows are known not to be final losses."""
    return 0 if data.finished is None else int((~data.finished).sum())
