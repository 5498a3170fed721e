"""What a reader must know before believing a fit, ordered by cause, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loopscale.core.quantities import counted
from loopscale.fitting.covariance import fit_covariance
from loopscale.fitting.degeneracy import no_gain
from loopscale.fitting.lack_of_fit import lack_of_fit
from loopscale.fitting.residuals import diverged_rows, outlier_limit, outlying_rows

if TYPE_CHECKING:
    from loopscale.fitting.data.observations import Observations
    from loopscale.fitting.result import Fit

POOR = 0.9
"""R² below which a law does not describe its data."""
UNIDENTIFIED = 0.25
"""A coefficient whose standard error is this part of its whole search range is not identified."""
FEW_ROWS = 3
"""Rows beyond the coefficients below which a fit of any form follows its data."""
NAMED = 3
"""Diverged runs that a warning names."""


class FitWarning(NamedTuple):
    """A problem in a sentence, and what to do about it, if there is something to do."""

    problem: str
    remedy: str = ""


def warnings_of(fit: Fit) -> tuple[FitWarning, ...]:
    """Return what a reader of the fit must know: first about the data, then about the form."""
    return (*_data(fit), *_poor(fit), *_degenerate(fit), *_trend(fit), *_form(fit), *_search(fit))


def law_note(fit: Fit) -> str:
    """Return the warnings that a law has as its note; its degeneracy has its own field."""
    own_field = set(_degenerate(fit))
    return "; ".join(warning.problem for warning in warnings_of(fit) if warning not in own_field)


def _data(fit: Fit) -> Iterator[FitWarning]:
    """Say what is wrong with the rows: diverged runs, suspicious columns, losses that are not final."""
    data = fit.observations
    rows = diverged_rows(fit)
    if (diverged := diverged_warning(fit, "RMSE and R²")) is not None:
        yield diverged
    yield from (FitWarning(*pair) for pair in data.warnings)
    others = [k for k in outlying_rows(fit) if k not in rows]
    if others:
        limit = outlier_limit(len(data), len(fit.free))
        worst = f"{'the worst ' if len(others) > 1 else ''}in {data.place(others[0])}"
        yield FitWarning(f"{counted(len(others), 'outlier')} beyond {limit:.2g} deviations, {worst}")
    if mid_schedule(data):
        yield FitWarning(
            f"{mid_schedule(data)} of {len(data)} rows are in mid-schedule; their losses are not final",
            "fit final losses only: their learning rate has decayed",
        )
    elif data.finished is None and (earlier := len(data) - len(data.runs)):
        yield FitWarning(
            f"{earlier} of {len(data)} rows come before the last row of their run; unless the learning rate was "
            "annealed for each, their losses are in mid-schedule",
            "a column `finished` or `annealed` says which losses are final",
        )


def diverged_warning(fit: Fit, left_out_of: str) -> FitWarning | None:
    """Name the runs that look diverged, and say what they are left out of; None where there are none."""
    data, rows = fit.observations, diverged_rows(fit)
    if not rows:
        return None
    names = [
        f"run {str(data.run[k])!r} ({data.place(k)}) looks diverged: loss {data.loss[k]:.3g}, "
        f"expected {data.loss[k] * np.exp(fit.residuals[k]):.3g}"
        for k in rows[:NAMED]
    ]
    more = f"; {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    remedy = without_rows(data, rows)
    return FitWarning(f"{'; '.join(names)}{more}", f"left out of {left_out_of}{'; ' if remedy else ''}{remedy}")


def without_rows(data: Observations, rows: list[int]) -> str:
    """Return the option that leaves out rows with a high loss: by a limit of the loss if there is one, else by run."""
    rest = np.delete(data.loss, rows)
    low, high = float(rest.max()), float(data.loss[rows].min())
    if low < high:
        limit = next(
            (value for digits in range(1, 8) if low < (value := float(f"{(low * high) ** 0.5:.{digits}g}")) <= high),
            high,
        )
        return f'drop it with --keep "loss < {limit:g}"'
    runs = " and ".join(f"run != {str(name)!r}" for name in dict.fromkeys(data.run[rows].tolist()))
    return f'drop it with --keep "{runs}"' if data.named_runs else ""


def _degenerate(fit: Fit) -> Iterator[FitWarning]:
    for reason in fit.degenerate:
        yield FitWarning(f"degenerate: {reason}", "add runs, try a simpler form, or hold coefficients with --fix")


def _form(fit: Fit) -> Iterator[FitWarning]:
    """Say what the form leaves out, and what the data do not determine."""
    data = fit.observations
    if not fit.outer.uses_experts and np.ptp(data.points.experts) > 0:
        yield FitWarning("E varies in the data, but the law does not know experts", "--outer joint-moe has them")
    if not fit.mapping.loops and np.ptp(data.points.recurrence) > 0:
        yield FitWarning(
            "R varies in the data, but the law does not know recurrence", "--mapping bounded has a gain from looping"
        )
    if (gain := no_gain(fit.problem, dict(fit.coefficients))) is not None:
        yield FitWarning(f"{gain} ended on its lower bound: these data show no gain from looping")
    if len(data) - len(fit.free) < FEW_ROWS:
        yield FitWarning(
            f"{len(data)} rows for {len(fit.free)} coefficients: the fit passes close to every loss",
            "the errors below say little; add runs, or hold coefficients with --fix",
        )
    if names := unidentified(fit):
        yield FitWarning(
            f"not identifiable from these data: {', '.join(names)}",
            "predictions inside the range do not depend on them",
        )
    if fit.at_bound:
        yield FitWarning(
            f"on a bound: {', '.join(f'{name} = {fit.coefficients[name]:.4g}' for name in fit.at_bound)}",
            f"--bound {fit.at_bound[0]}=LOW:HIGH searches further",
        )


def _poor(fit: Fit) -> Iterator[FitWarning]:
    """Say that the law does not describe its data at all: then the columns are to be checked first."""
    if (share := fit.r_squared) < POOR:
        yield FitWarning(f"lack of fit: R² is {share:.2f}", "check the columns and units, or compare other forms")


def _trend(fit: Fit) -> Iterator[FitWarning]:
    """Say where the law misses its own data."""
    if (trend := lack_of_fit(fit)) is not None and trend.matters:
        yield FitWarning(
            f"lack of fit: residuals have a trend along {trend.along}, up to {trend.size:.1%} of the loss "
            f"(p = {trend.p_value:.3f})",
            "predictions beyond the data may drift; `loopscale compare` tries other forms",
        )


def _search(fit: Fit) -> Iterator[FitWarning]:
    if fit.agreeing < fit.starts:
        yield FitWarning(
            f"{fit.agreeing} of {fit.starts} starts agree; the others ended above the best objective",
            f"--starts {4 * fit.starts} searches longer",
        )


def unidentified(fit: Fit) -> tuple[str, ...]:
    """Return the coefficients that the data leave open, those on a bound aside."""
    problem, errors = fit.problem, fit_covariance(fit).errors
    wide = zip(fit.free, problem.width, strict=True)
    return tuple(name for name, width in wide if name in errors and errors[name] > UNIDENTIFIED * width)


def mid_schedule(data: Observations) -> int:
    """Return how many rows are known not to be final losses."""
    return 0 if data.finished is None else int((~data.finished).sum())
