"""Forecasts of the largest runs of public sweeps beside their measured losses, and the same by simple rivals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.numerics import student_quantile
from loopscale.core.tables import Table
from loopscale.core.text import text_table
from loopscale.fitting.backtest import backtest
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.data.public import load_public
from loopscale.fitting.held_out import interval_score, top_decades
from loopscale.fitting.result import Fit
from loopscale.scaling import Points

SWEEPS = ("datablations", "epoch-chinchilla", "gemstones-hot", "isodepth", "marin-comma-isoflop", "misfitting-isoflop",
          "mlf-redpajama-c4val", "olmo-ladder", "porian-chinchilla-decay", "qlabs-loops")  # fmt: skip
"""Public sweeps of several sizes and token counts over a decade of compute or more."""
KEEP = {"mlf-redpajama-c4val": "D/N >= 20"}
RESAMPLES = 40
FEWEST = 8
"""Rows that are left to fit."""


@dataclass(frozen=True)
class Entry:
    """One sweep with its top decades hidden: their forecast losses beside the measured ones."""

    sweep: str
    decades: float
    fitted: int
    hidden: int
    level: float
    forecast: float
    """Of the run with the largest compute."""
    low: float
    high: float
    measured: float
    coverage: float
    error: float
    """Mean absolute error of ln loss over the hidden rows."""
    bias: float
    """Mean of ln forecast - ln measured."""
    score: float
    """Mean of width + 2 / (1 - level) x miss, in ln loss; lower is better."""
    law_score: float
    """The same of the law with its resampled laws and the noise of a run."""
    line_score: float
    """The same of a plane through ln N and ln D of the upper half of the runs, with its residual noise."""

    @property
    def covered(self) -> bool:
        """Whether the largest run came out inside its interval."""
        return self.low <= self.measured <= self.high


def scoreboard(
    names: Iterable[str] = SWEEPS, decades: float = 1.0, level: float = 0.9, resamples: int = RESAMPLES
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Return an entry for each sweep that can be read and split, and why the others are left out."""
    entries, left_out, readable = [], [], 0
    for name in names:
        try:
            data = load_public(name)
            readable += 1
            entries.append(entry(name, data.keep(KEEP[name]) if name in KEEP else data, decades, level, resamples))
        except InputError as error:
            left_out.append(f"{name}: {error}")
    if not entries and readable:
        raise InputError(
            f"no sweep has {FEWEST} rows left to fit with {decades:g} decades hidden", remedy="lower `decades`"
        )
    if not entries:
        raise InputError(
            "no public sweep can be read",
            remedy="set LOOPSCALE_DATA to the folder that has them, or unset it and connect to download them",
        )
    return tuple(entries), tuple(left_out)


def entry(name: str, data: Observations, decades: float, level: float, resamples: int = RESAMPLES) -> Entry:
    """Backtest a sweep with its top decades of compute hidden, and score the rivals on the same rows."""
    left = int((~top_decades(data.points.train_flops, decades)).sum())
    if left < FEWEST:
        raise InputError(f"{left} rows are left with {decades:g} decades hidden")
    test = backtest(data, decades=decades, level=level, rolling=False, resamples=resamples)
    hidden, loss = test.hidden, np.log(test.hidden.loss)
    last = int(np.argmax(hidden.points.train_flops))
    return Entry(
        sweep=name, decades=decades, fitted=test.score.train_rows, hidden=test.score.held_out, level=level,
        forecast=float(test.predicted[last]), low=float(test.low[last]), high=float(test.high[last]),
        measured=float(hidden.loss[last]), coverage=test.score.coverage,
        error=float(np.mean(np.abs(np.log(test.predicted) - loss))), bias=test.score.bias,
        score=test.score.interval_score,
        law_score=interval_score(*_law(test.fit, hidden.points, level), loss, level),
        line_score=interval_score(*_plane(test.fit.observations, hidden.points, level), loss, level),
    )  # fmt: skip


def _law(fitted: Fit, points: Points, level: float) -> tuple[FloatArray, FloatArray]:
    """Return the interval of the law with its resampled laws and the noise of a run."""
    centre, law = np.log(fitted.curve(points)), fitted.curve.deviation(points)
    half = student_quantile(level, 1e3) * np.hypot(law, fitted.run_noise)
    return centre - half, centre + half


def _plane(data: Observations, points: Points, level: float) -> tuple[FloatArray, FloatArray]:
    """Return the interval of ln L = a + b ln N + c ln D through the upper half of the runs by compute."""
    flops = data.points.train_flops
    top = flops >= np.median(flops)
    design = _columns(data.points)[top]
    target = np.log(data.loss[top])
    fitted, *_ = np.linalg.lstsq(design, target, rcond=None)
    noise = float(np.sqrt(np.sum((target - design @ fitted) ** 2) / max(len(target) - 3, 1)))
    centre, half = _columns(points) @ fitted, student_quantile(level, 1e3) * noise
    return centre - half, centre + half


def _columns(points: Points) -> FloatArray:
    return np.column_stack([np.ones(points.shape), np.log(points.unrolled), np.log(points.tokens)])


def averages(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the means over sweeps; ratios of scores are geometric."""

    def ratio(rival: str) -> float:
        return float(np.exp(np.mean([np.log(each.score / getattr(each, rival)) for each in entries])))

    return {
        "sweeps": len(entries),
        "coverage": float(np.mean([each.coverage for each in entries])),
        "largest_covered": sum(each.covered for each in entries),
        "error": float(np.mean([each.error for each in entries])),
        "bias": float(np.mean([each.bias for each in entries])),
        "score_over_law": ratio("law_score"),
        "score_over_plane": ratio("line_score"),
    }


def scoreboard_table(entries: Sequence[Entry]) -> Table:
    """Return one row for each sweep."""
    return Table.from_records([{**vars(each), "covered": each.covered} for each in entries])


def scoreboard_text(entries: Sequence[Entry], left_out: Sequence[str]) -> str:
    """Return the scoreboard for the terminal."""
    mean = averages(entries)
    share = f"{mean['largest_covered']} of {mean['sweeps']}"
    lines = [
        f"{entries[0].level:.0%} intervals cover {mean['coverage']:.0%} of hidden losses ({mean['sweeps']} sweeps), "
        f"{share} largest runs.",
        f"Top {entries[0].decades:g} decades hidden; mean error {mean['error']:.1%}, bias {mean['bias']:+.1%}.",
        "",
    ]
    columns = ("sweep", "rows", "largest: forecast", "measured", "in", "covers", "bias", "score")
    rows = [
        (each.sweep[:17], str(each.hidden), f"{each.forecast:.2f} ({each.low:.2f}-{each.high:.2f})",
         f"{each.measured:.2f}", "yes" if each.covered else "NO", f"{each.coverage:.0%}", f"{each.bias:+.1%}",
         f"{each.score:.3f}")
        for each in entries
    ]  # fmt: skip
    lines += [text_table(columns, rows, left=("sweep",)), ""]
    lines += ["score: interval width plus 20 x misses in ln loss, lower is better; over that of"]
    lines += [
        f"the law with noise {mean['score_over_law']:.2f}, of a plane in ln N, ln D {mean['score_over_plane']:.2f}."
    ]
    return "\n".join([*lines, *(f"left out: {text}"[:79] for text in left_out)])
