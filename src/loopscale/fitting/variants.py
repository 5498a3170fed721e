"""Does a change help? The effective speedup of a variant over a baseline, and whether it grows or fades with scale.

Each run of the variant is set beside a baseline run of the same compute (6 N_unroll D) and the same tokens. Its speedup
s is the factor by which the baseline's compute, and with it size and tokens alike, would have to grow to reach the
variant's loss. A baseline with enough runs is its fitted law; one whose runs lie along a line of compute is a curve
through their losses, which answers within their range alone. The intervals come from refits of the baseline and from
drawing the variant's runs again, with noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, TypeAlias

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_power
from loopscale.core.tables import Table
from loopscale.core.text import WIDTH, fact, text_table
from loopscale.fitting.data.folders import STATE
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.estimate import fit
from loopscale.fitting.result import Fit
from loopscale.scaling import PUBLISHED, Points, ScalingLaw, costs, find_law, tails

RESAMPLES = 200
LEAST_LAW_ROWS = 8
"""Baseline runs from which a law is fitted; fewer give a curve along compute."""
OWN_LINE = 0.3
"""Standard deviation of ln(D / N) below which runs lie along one line, so that size and tokens are not
separately identifiable."""
FACTORS = np.linspace(np.log(1 / 30), np.log(30), 1201)
"""Logarithms of the speedups among which each run's is searched."""
CURVE_NOISE = 0.003
"""Noise of ln loss assumed where a curve has too few runs to show it: that of small public sweeps."""
LEAST_RUNS = 3
"""Runs of a variant from which a trend with scale is estimated."""
LEAST_SPAN = 0.05
"""Decades of compute that they should span: runs of one budget differ in its last digits."""
THROUGHPUT = ("tokens_per_second", "tokens/s", "tok_per_s", "tps", "throughput")


@dataclass(frozen=True)
class LawBaseline:
    """A baseline that is a law."""

    law: ScalingLaw
    noise: float
    """Of ln loss of one run."""

    @property
    def name(self) -> str:
        """What the law is called."""
        return self.law.name

    def losses(self, flops: FloatArray, ratio: FloatArray) -> FloatArray:
        """Return the losses of dense runs of that compute and D / N, (Z, ...): the law's own, then its refits'."""
        size = np.sqrt(flops / (costs.TRAIN * ratio))
        points = Points(size, size * ratio)
        own = self.law(points)[None]
        return own if self.law.resamples is None else np.concatenate([own, self.law.resampled(points)])


@dataclass(frozen=True, eq=False)
class CurveBaseline:
    """A baseline that is a curve of ln loss over ln compute, through few runs of about one D / N."""

    name: str
    centre: float
    coefficients_Zp: FloatArray
    range: tuple[float, float]
    noise: float

    @classmethod
    def of(cls, data: Observations, resamples: int, seed: int) -> CurveBaseline:
        """Fit a line through two or three runs, a parabola through more; refits have new noise."""
        x, y = np.log(data.points.train_flops), np.log(data.loss)
        if len(np.unique(x)) < 2:
            raise InputError("the baseline has one compute only", where=data.source, remedy="give two runs or more")
        degree = 2 if len(np.unique(x)) > 3 else 1
        own = np.polynomial.polynomial.polyfit(x - x.mean(), y, degree)
        left = len(x) - degree - 1
        residual = y - np.polynomial.polynomial.polyval(x - x.mean(), own)
        noise = float(np.sqrt((2 * CURVE_NOISE**2 + residual @ residual) / (2 + left)))
        drawn = y + noise * np.random.default_rng(seed).standard_normal((resamples, len(x)))
        refits = np.polynomial.polynomial.polyfit(x - x.mean(), drawn.T, degree).T
        return cls(data.name, float(x.mean()), np.vstack([own, refits]), (float(x.min()), float(x.max())), noise)

    def losses(self, flops: FloatArray, ratio: FloatArray) -> FloatArray:
        """Return the losses at that compute; NaN more than a factor of three outside the runs."""
        x = np.log(flops)
        inside = (x > self.range[0] - np.log(3)) & (x < self.range[1] + np.log(3))
        value = np.polynomial.polynomial.polyval(x - self.centre, self.coefficients_Zp.T, tensor=True)
        return np.where(inside, np.exp(value), np.nan)


Baseline: TypeAlias = LawBaseline | CurveBaseline


@dataclass(frozen=True)
class VariantRun:
    """One run of the variant beside the baseline."""

    run: str
    flops: float
    loss: float
    baseline_loss: float
    """Of the same compute and the same tokens."""
    speedup: float | None
    """None where the baseline does not reach the loss."""
    low: float | None
    high: float | None
    time_speedup: float | None = None
    """The same at equal wall clock, where both tables state their tokens per second."""


@dataclass(frozen=True)
class SpeedupTrend:
    """A speedup at the largest run of a variant, and how it changes with compute."""

    speedup: float
    low: float
    high: float
    per_decade: float | None
    """The factor by which it changes in a decade of compute; None for fewer than three runs, or one budget."""
    per_decade_low: float | None
    per_decade_high: float | None

    @property
    def direction(self) -> str:
        """Say whether the speedup grows or fades with scale, where the interval decides it."""
        if self.per_decade_low is None or self.per_decade_high is None:
            return "unknown"
        return "grows" if self.per_decade_low > 1 else "fades" if self.per_decade_high < 1 else "undecided"

    @property
    def helps(self) -> bool | None:
        """Whether the change helps at the largest run; None where the interval contains 1."""
        return True if self.low > 1 else False if self.high < 1 else None


@dataclass(frozen=True, repr=False)
class Gate:
    """Whether a variant is better than its baseline at equal compute, and at equal wall clock."""

    variant: str
    baseline: str
    level: float
    compute: SpeedupTrend
    time: SpeedupTrend | None
    """At equal wall clock; None where throughput is not stated on both sides."""
    runs: tuple[VariantRun, ...]

    def table(self) -> Table:
        """Return one row for each run of the variant."""
        return Table.from_records([asdict(run) for run in self.runs])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "kind": "gate", "variant": self.variant, "baseline": self.baseline, "level": self.level,
            "compute": _trend_dict(self.compute), "time": None if self.time is None else _trend_dict(self.time),
            "runs": [asdict(run) for run in self.runs],
        }  # fmt: skip

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        t = self.compute
        return f"<Gate {self.variant} against {self.baseline}: {t.speedup:.3g}x ({t.low:.3g}x to {t.high:.3g}x)>"

    def summary(self, verbose: bool = False) -> str:
        """Return the answer, how it changes with scale, and the runs."""
        shown = self.runs if verbose else self.runs[-MOST_SHOWN:]  # the largest
        timed = any(run.time_speedup is not None for run in self.runs)
        columns = ("run", "FLOPs", "loss", "baseline", "speedup", f"{self.level:.0%} interval",
                   *(("wall clock",) if timed else ()))  # fmt: skip
        rows = [
            (run.run, format_power(run.flops), f"{run.loss:.4f}", f"{run.baseline_loss:.4f}", _times(run.speedup),
             "" if run.low is None else f"{_times(run.low)} to {_times(run.high)}",
             *((_times(run.time_speedup),) if timed else ()))
            for run in shown
        ]  # fmt: skip
        lines = [*wrap(self._answer(), WIDTH), ""]
        lines += fact("compute", _trend_text(self.compute, self.level))
        if self.time is not None:
            lines += fact("wall clock", _trend_text(self.time, self.level))
        lines += ["", text_table(columns, rows, left=("run",))]
        if len(shown) < len(self.runs):
            lines.append(f"{len(self.runs) - len(shown)} more with --verbose, --csv or --json")
        lines += wrap(f"speedup: compute that {self.baseline} needs for the same loss over the compute of the run; "
                      "baseline: its loss at the same compute and tokens.", WIDTH)  # fmt: skip
        return "\n".join(lines)

    def _answer(self) -> str:
        trend = self.compute
        verdict = {None: "Undecided", True: "It helps", False: "It does not help"}[trend.helps]
        where = f"at {format_power(max(run.flops for run in self.runs))} FLOPs"
        return (
            f"{verdict}: {self.variant} is worth {trend.speedup:.3g}x of {self.baseline}'s compute {where}, "
            f"{self.level:.0%} interval {trend.low:.3g}x to {trend.high:.3g}x."
        )


MOST_SHOWN = 10


def gate(
    variant: Any,
    against: Any,
    *,
    level: float = 0.9,
    resamples: int = RESAMPLES,
    seed: int = 0,
    outer: str | None = None,
    mapping: str | None = None,
) -> Gate:
    """Compare a variant with a baseline: how much compute, and how much time, is it worth?

    Both are tables of runs, as for ``fit``; ``against`` may also be a law, a fit, a law file or the name of a law. With
    a column ``tokens_per_second`` on both sides the wall clock is compared too. ``outer`` and ``mapping`` choose the
    baseline's form.
    """
    runs = Observations.of(variant)
    base, rows = _baseline(against, resamples, seed, outer, mapping)
    flops = runs.points.train_flops
    size = runs.points.unrolled
    ratio = runs.points.tokens / size
    factors = np.exp(FACTORS)
    losses = base.losses(flops[:, None] * factors, np.broadcast_to(ratio[:, None], (len(flops), len(factors))))
    own = base.losses(flops, ratio)[0]
    logs_Zn = _speedups(losses, runs.loss)
    if not np.isfinite(logs_Zn[0]).any():
        raise InputError(
            f"no run of the variant has a loss that {base.name} reaches within 30x of its compute",
            where=runs.source, remedy="compare runs of the same data and loss, at compute near each other",
        )  # fmt: skip
    random = np.random.default_rng(seed)
    noisy_Zn = _with_noise(logs_Zn, losses, runs.loss, base.noise, random)
    spans = _interval(noisy_Zn, level)
    compute = _trend(np.log10(flops), logs_Zn[0], noisy_Zn, level, random)
    clock = _clock(runs, rows, flops, ratio, logs_Zn, noisy_Zn)
    time = None if clock is None else _trend(np.log10(flops), clock[0][0], clock[1], level, random)
    records = tuple(
        VariantRun(
            str(runs.run[i]), float(flops[i]), float(runs.loss[i]), float(own[i]), _exp(logs_Zn[0, i]),
            _exp(spans[0, i]), _exp(spans[1, i]), None if clock is None else _exp(clock[0][0, i]),
        )
        for i in np.argsort(flops, kind="stable")
    )  # fmt: skip
    names = (runs.name, base.name) if runs.name != base.name else ("the variant", "the baseline")
    return Gate(*names, level, compute, time, records)


def _baseline(
    against: Any, resamples: int, seed: int, outer: str | None, mapping: str | None
) -> tuple[Baseline, Observations | None]:
    if isinstance(against, Fit):
        return LawBaseline(against.law, against.run_noise), against.observations
    if isinstance(against, ScalingLaw) or (isinstance(against, str | Path) and is_law(against)):
        law = find_law(against if isinstance(against, ScalingLaw) else str(against))
        spread = law.spread.noise if law.spread is not None else (law.rmse or 0.0) / 3
        return LawBaseline(law, max(float(spread), CURVE_NOISE)), None
    rows = Observations.of(against)
    p = rows.points
    along_a_line = float(np.std(np.log(p.tokens / p.active))) < OWN_LINE
    if len(rows.runs) < LEAST_LAW_ROWS or along_a_line:
        return CurveBaseline.of(rows, resamples, seed), rows
    fitted = fit(rows, outer=outer or "chinchilla", mapping=mapping or "none", resamples=resamples, seed=seed)
    return LawBaseline(fitted.law, fitted.run_noise), rows


def is_law(name: str | Path) -> bool:
    """Tell whether a text names a law: a JSON file, or a published law."""
    return str(name) in PUBLISHED or (str(name).endswith(".json") and Path(name).name != STATE)


def _speedups(losses_Znk: FloatArray, loss_n: FloatArray) -> FloatArray:
    """Return ln s of each run under each refit: where the baseline's loss, which falls with s, meets the run's."""
    logs_Zn = np.full(losses_Znk.shape[:2], np.nan)
    for z, n in np.ndindex(*logs_Zn.shape):
        curve = losses_Znk[z, n]
        finite = np.isfinite(curve)
        falling = np.minimum.accumulate(np.where(finite, curve, np.inf))[finite]
        if len(falling) and falling[-1] <= loss_n[n] <= falling[0]:
            logs_Zn[z, n] = np.interp(-loss_n[n], -falling, FACTORS[finite])
    return logs_Zn


def _with_noise(
    logs_Zn: FloatArray, losses_Znk: FloatArray, loss_n: FloatArray, noise: float, random: np.random.Generator
) -> FloatArray:
    """Return the speedups with the noise of one run: its loss over the slope of the baseline in ln s."""
    middle = len(FACTORS) // 2
    step = FACTORS[middle + 60] - FACTORS[middle - 60]
    slope = np.log(losses_Znk[0, :, middle + 60] / losses_Znk[0, :, middle - 60]) / step
    width = np.where(np.isfinite(slope) & (slope < 0), noise / np.maximum(-slope, 1e-6), np.nan)
    fallback = float(np.nanmedian(width)) if np.isfinite(width).any() else 0.0
    return np.asarray(logs_Zn + np.where(np.isfinite(width), width, fallback) * random.standard_normal(logs_Zn.shape))


def _interval(values_Zn: FloatArray, level: float) -> FloatArray:
    low, high = tails(level)
    several = np.isfinite(values_Zn).sum(axis=0) > 1
    spans = np.full((2, values_Zn.shape[1]), np.nan)
    spans[:, several] = np.nanquantile(values_Zn[:, several], [low, high], axis=0)
    return spans


def _trend(
    x: FloatArray, own: FloatArray, noisy_Zn: FloatArray, level: float, random: np.random.Generator
) -> SpeedupTrend:
    """Fit ln s as a line over the decades of compute; refits take their own speedups and draw the runs again."""
    finite = np.isfinite(own)
    x, own, noisy_Zn = x[finite], own[finite], noisy_Zn[:, finite]
    top = float(x.max())
    lines = len(x) >= LEAST_RUNS and np.ptp(x) >= LEAST_SPAN

    def line(values: FloatArray, rows: Any) -> tuple[float, float]:
        use = np.isfinite(values)
        at, y = x[rows][use], values[use]
        if not lines or len(at) < 2 or np.ptp(at) < LEAST_SPAN:
            return float(y.mean()) if len(y) else np.nan, np.nan
        slope, level_ = np.polyfit(at - top, y, 1)
        return float(level_), float(slope)

    everything = np.arange(len(x))
    centre = line(own, everything)
    drawn = []
    for values in noisy_Zn[1:] if len(noisy_Zn) > 1 else noisy_Zn:
        rows = random.integers(0, len(x), len(x)) if lines else everything
        drawn.append(line(values[rows], rows))
    levels, slopes = (column[np.isfinite(column)] for column in np.array(drawn).T)
    factors = (None, None, None) if not lines or not len(slopes) else _with_tails(centre[1], slopes, level)
    return SpeedupTrend(*_with_tails(centre[0], levels, level), *factors)


def _with_tails(centre: float, drawn: FloatArray, level: float) -> tuple[float, float, float]:
    """Return the factor of a logarithm, and the interval of its refits."""
    low, high = np.quantile(drawn, tails(level)) if len(drawn) else (np.nan, np.nan)
    return float(np.exp(centre)), float(np.exp(low)), float(np.exp(high))


def _clock(
    runs: Observations, rows: Observations | None, flops: FloatArray, ratio: FloatArray, logs_Zn: FloatArray,
    noisy_Zn: FloatArray,
) -> tuple[FloatArray, FloatArray] | None:  # fmt: skip
    """Return ln speedups at equal wall clock, plain and noisy; None where one side states no tokens per second.

    The baseline's tokens per second are a power of its size, through its own runs.
    """
    own, other = _throughput(runs.extra), None if rows is None else _throughput(rows.extra)
    if own is None or other is None or rows is None:
        return None
    sizes = np.log(rows.points.unrolled)
    degree = 1 if len(np.unique(sizes)) > 1 else 0
    curve = np.polynomial.polynomial.polyfit(sizes, np.log(other), degree)
    tokens = runs.points.tokens

    def ratios(logs: FloatArray) -> FloatArray:
        spent = np.exp(logs) * flops
        size = np.sqrt(spent / (costs.TRAIN * ratio))
        seconds = size * ratio / np.exp(np.polynomial.polynomial.polyval(np.log(size), curve))
        return np.asarray(np.log(seconds / (tokens / own)))

    return ratios(logs_Zn), ratios(noisy_Zn)


def _throughput(extra: Mapping[str, Any]) -> FloatArray | None:
    for name, column in extra.items():
        if name.strip().lower() in THROUGHPUT:
            values = np.asarray(column, dtype=np.float64)
            return values if np.all(np.isfinite(values) & (values > 0)) else None
    return None


def _trend_text(trend: SpeedupTrend, level: float) -> str:
    text = f"{trend.speedup:.3g}x at the largest run ({level:.0%}: {trend.low:.3g}x to {trend.high:.3g}x)"
    if trend.per_decade is None:
        return f"{text}; too few runs for a trend"
    span = f"x{trend.per_decade:.3g} a decade ({trend.per_decade_low:.3g} to {trend.per_decade_high:.3g})"
    words = {"grows": "it grows with scale", "fades": "it fades with scale", "undecided": "no trend with scale is seen"}
    return f"{text}; {words[trend.direction]}: {span}"


def _trend_dict(trend: SpeedupTrend) -> dict[str, Any]:
    return {**asdict(trend), "direction": trend.direction, "helps": trend.helps}


def _exp(value: float) -> float | None:
    return float(np.exp(value)) if np.isfinite(value) else None


def _times(value: float | None) -> str:
    return "beyond" if value is None else f"{value:.3g}x"
