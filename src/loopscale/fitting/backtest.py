"""Backtests: hide the largest runs, fit the rest, and see how far off and how well covered the predictions are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_count
from loopscale.core.tables import Table
from loopscale.core.text import fact, text_table, warning
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.estimate import fit
from loopscale.fitting.held_out import score_intervals, top_decades
from loopscale.fitting.resample import Progress
from loopscale.fitting.residuals import DIVERGED
from loopscale.fitting.result import RESAMPLES, Fit
from loopscale.fitting.slices import Slice
from loopscale.fitting.summary import warning_lines
from loopscale.fitting.warnings import FitWarning, diverged_warning

DECADES = 1.0
ORIGINS = (0.5, 1.0, 1.5)
"""Decades of compute that rolling origins hide."""
ORIGIN_RESAMPLES = 20
"""Refits of each rolling origin: enough for a width, fewer than for the main result."""


@dataclass(frozen=True)
class BacktestScore:
    """How well one fit predicts the rows that were hidden from it."""

    hidden: str
    train_rows: int
    held_out: int
    """Rows that were hidden; those of diverged runs are not scored and do not count."""
    level: float
    coverage: float
    """Share of hidden losses inside the predictive interval."""
    law_coverage: float
    """Share of hidden losses inside the confidence band of the curve."""
    mean_abs_relative_error: float
    median_width: float
    """Median width of the predictive interval in ln loss."""
    interval_score: float
    """Mean of width + 2 / (1 - level) x miss, in ln loss; lower is better."""
    bias: float
    """Mean of ln predicted - ln observed."""


@dataclass(frozen=True, eq=False, repr=False)
class Backtest:
    """A backtest with its rolling origins and its hidden rows."""

    source: str
    score: BacktestScore
    origins: tuple[BacktestScore, ...]
    """The same with other parts hidden, where the data allow it."""
    fit: Fit
    """The fit to the rows that were not hidden."""
    hidden: Observations
    predicted: FloatArray
    low: FloatArray
    high: FloatArray
    warnings: tuple[FitWarning, ...] = ()
    """Hidden runs that look diverged, which are left out of the scores."""

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of the main split for JSON."""
        names = ("train_rows", "held_out", "level", "coverage", "mean_abs_relative_error", "median_width",
                 "interval_score")  # fmt: skip
        return {name: getattr(self.score, name) for name in names}

    def table(self) -> Table:
        """Return one row for each hidden loss."""
        p = self.hidden.points
        return Table.from_arrays(
            (len(self.hidden),), run=self.hidden.run, N=p.active, D=p.tokens, E=p.experts, R=p.recurrence,
            C=p.train_flops, observed=self.hidden.loss, predicted=self.predicted, low=self.low, high=self.high,
            relative_error=self.predicted / self.hidden.loss - 1,
            inside=(self.low <= self.hidden.loss) & (self.hidden.loss <= self.high),
        )  # fmt: skip

    def summary(self, verbose: bool = False) -> str:
        """Return how well the hidden losses were predicted, and the same with other parts hidden."""
        s, data = self.score, self.fit.observations
        lines = [
            f"{s.level:.0%} predictive intervals cover {s.coverage:.0%} of {s.held_out:,} hidden losses; "
            f"mean error {s.mean_abs_relative_error:.2%}.",
            "",
            *fact("data", f"{data.name}: fitted {s.train_rows:,} rows, hid {s.held_out:,} ({s.hidden})"),
            *fact("bias", f"{s.bias:+.2%} (minus: predicted below measured)"),
            *fact("width", f"{s.median_width:.1%} of the loss, the median; interval score {s.interval_score:.4f}"),
        ]
        if verbose:
            lines += fact("law only", f"the confidence band of the curve covers {s.law_coverage:.0%}")
            lines += fact("source", self.source)
        if self.origins:
            lines += ["", scores_text(self.origins)]
        if self.warnings:
            lines += ["", *(line for each in self.warnings for line in warning(*each))]
        return "\n".join([*lines, *warning_lines(self.fit, None if verbose else 2)])

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        s = self.score
        return f"<Backtest of {self.source}: {s.coverage:.0%} of {s.held_out} hidden losses covered>"

    def _repr_html_(self) -> str:
        return scores_table([self.score, *self.origins])._repr_html_()

    def plot(self) -> Any:
        """Return a matplotlib figure: relative errors and intervals of the hidden runs along compute."""
        from matplotlib.figure import Figure  # half a second, which only figures should cost

        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        train, hidden = self.fit.observations, self.hidden
        axes.axhline(0.0, color="0.6", linewidth=0.8)
        axes.scatter(train.points.train_flops, 100 * self.fit.residuals, s=8, color="0.6", label="fitted")
        errors = 100 * np.log(self.predicted / hidden.loss)
        spans = [100 * np.log(self.predicted / self.low), 100 * np.log(self.high / self.predicted)]
        axes.errorbar(hidden.points.train_flops, errors, yerr=spans, fmt="o", ms=3, lw=0.8, label="hidden")
        axes.set(xscale="log", xlabel="training compute C (FLOPs)", ylabel="ln predicted − ln observed (%)")
        axes.set_title(f"{self.score.level:.0%} intervals cover {self.score.coverage:.0%}")
        axes.legend(frameon=False)
        return figure


def backtest(
    data: Any,
    *,
    decades: float = DECADES,
    hold_out: str | None = None,
    level: float = 0.9,
    rolling: bool = True,
    resamples: int = RESAMPLES,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Backtest:
    """Hide the top ``decades`` of training compute, or the rows of ``hold_out`` like ``C>1e21``, and predict them.

    ``options`` are those of ``loopscale.fitting.fit``; ``workers`` and ``progress`` those of
    ``loopscale.fitting.Fit.resample``. Rolling origins repeat the backtest with other parts of the compute hidden,
    where enough rows remain. Hidden runs that look diverged are not scored, and are named.
    """
    observations = Observations.of(data)
    mask, label = _hidden(observations, decades, hold_out)
    fitted = fit(observations.where(~mask), resamples=0, seed=seed, **options)
    fitted = fitted.resample(resamples, seed=seed, workers=workers, progress=progress)
    all_rows = _fit_of_all(fitted, observations, seed, options)
    sound = np.ones(len(observations), dtype=bool) if all_rows is None else all_rows.sound
    if not (mask & sound).any():
        raise InputError(f"every run in {label} looks diverged", where=observations.source)
    result = _scored(fitted, observations.where(mask & sound), label, level)
    if all_rows is not None and (mask & ~sound).any():
        named = diverged_warning(all_rows, "the scores")
        result = replace(result, warnings=() if named is None else (named,))
    if not rolling:
        return result
    scored = {decades: result.score} if hold_out is None else {}
    near = {"warm": dict(fitted.coefficients), "starts": 2, "seed": seed}  # other parts of the same sweep end nearby
    return replace(result, origins=tuple(_origins(observations, sound, level, {**near, **options}, scored)))


def _fit_of_all(fitted: Fit, data: Observations, seed: int, options: dict[str, Any]) -> Fit | None:
    """Return a fit to all rows, which tells diverged runs from bad predictions; None where no loss is so high."""
    if not (data.loss > DIVERGED * fitted.law(data.points)).any():
        return None
    return fit(data, resamples=0, seed=seed, **options)


def _hidden(data: Observations, decades: float, hold_out: str | None) -> tuple[BoolArray, str]:
    if hold_out is not None:
        part = Slice.parse(hold_out)
        mask, _ = part.held_out(data)
        return mask, part.text
    if not (np.isfinite(decades) and decades > 0):
        raise InputError(f"`decades` is {decades}", remedy="it should be above zero")
    flops = data.points.train_flops
    mask = top_decades(flops, decades)
    if mask.all():
        raise InputError(
            f"all runs lie within {decades:g} decades of compute "
            f"({format_count(flops.min())} to {format_count(flops.max())} FLOPs)",
            where=data.source, remedy="hide fewer `decades`",
        )  # fmt: skip
    return mask, f"C > {format_count(flops.max() / 10**decades)}"


def _origins(
    data: Observations, sound: BoolArray, level: float, options: dict[str, Any], scored: dict[float, BacktestScore]
) -> Sequence[BacktestScore]:
    """Return a score for each origin that leaves enough rows; those that are ``scored`` are not fitted again."""
    scores = []
    for decades in ORIGINS:
        if decades in scored:
            scores.append(replace(scored[decades], hidden=f"top {decades:g} decades, {scored[decades].hidden}"))
            continue
        try:
            mask, label = _hidden(data, decades, None)
            fitted = fit(data.where(~mask), resamples=ORIGIN_RESAMPLES, **options)
            hidden = data.where(mask & sound)
        except InputError:  # too few rows are left
            continue
        if len(hidden):
            scores.append(_scored(fitted, hidden, f"top {decades:g} decades, {label}", level).score)
    return scores


def _scored(fitted: Fit, hidden: Observations, label: str, level: float) -> Backtest:
    prediction = fitted.predict_points(hidden.points, level)
    inside_band = (prediction.law_low <= hidden.loss) & (hidden.loss <= prediction.law_high)
    score = BacktestScore(
        hidden=label,
        train_rows=len(fitted.observations),
        held_out=len(hidden),
        level=level,
        law_coverage=float(np.mean(inside_band)),
        mean_abs_relative_error=float(np.mean(np.abs(prediction.value / hidden.loss - 1))),
        **score_intervals(hidden.loss, prediction.value, prediction.low, prediction.high, level)._asdict(),
    )
    source = fitted.observations.source
    return Backtest(source, score, (), fitted, hidden, prediction.value, prediction.low, prediction.high)


def scores_table(scores: Sequence[BacktestScore]) -> Table:
    """Return one row for each backtest."""
    return Table.from_records([vars(score) for score in scores])


def scores_text(scores: Sequence[BacktestScore]) -> str:
    """Return the backtests as a table for the terminal."""
    columns = ("hidden", "fitted", "rows", "covered", "error", "bias", "width", "score")
    rows = [
        (
            s.hidden, str(s.train_rows), str(s.held_out), f"{s.coverage:.0%}", f"{s.mean_abs_relative_error:.2%}",
            f"{s.bias:+.2%}", f"{s.median_width:.1%}", f"{s.interval_score:.3f}",
        )
        for s in scores
    ]  # fmt: skip
    return text_table(columns, rows, left=("hidden",))
