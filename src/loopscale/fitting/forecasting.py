"""Forecasts of larger runs: the loss that a budget or a model will reach, by the law and the frontier of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import count_of, decimals, format_count, format_power
from loopscale.core.tables import Table
from loopscale.core.text import fact, text_table
from loopscale.fitting.approaches import Approach, approaches
from loopscale.fitting.data.again import is_law_file
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.estimate import fit
from loopscale.fitting.frontier import proportions
from loopscale.fitting.resample import Progress
from loopscale.fitting.result import RESAMPLES, Fit
from loopscale.fitting.summary import warning_lines
from loopscale.scaling import (
    DENSE,
    Frontier,
    LawForecast,
    Points,
    Proportions,
    ScalingLaw,
    costs,
    find_law,
    lowest,
    tails,
    with_repetition,
)
from loopscale.scaling.frontier import BY_SIZE, REACH
from loopscale.scaling.published import repetition_text
from loopscale.scaling.variables import (
    REFIT,
    WithheldError,
    check_variables,
    default_variables,
    why_degenerate,
)

TESTED = 3.5
"""Decades beyond the data to which the intervals were tested on public sweeps."""
FARTHEST = 4.5
"""Decades beyond the data from which no forecast is made unless it is asked for."""


@dataclass(frozen=True)
class Forecast:
    """The loss that one run will reach, with an interval, and the parts that it is made of."""

    flops: float
    params: float
    """N: active parameters, counted as the data count them."""
    tokens: float
    experts: float
    recurrence: float
    loss: float
    low: float
    high: float
    level: float
    params_interval: tuple[float, float] | None
    """Where the compute-optimal N* should lie; None where the model was given."""
    law: float
    """The loss by the fitted law alone."""
    law_interval: tuple[float, float] | None
    """The confidence band of that curve."""
    frontier: float | None
    """The loss by the compute-optimal frontier, at this run's distance from it."""
    frontier_interval: tuple[float, float] | None
    weight: float
    """Share of the frontier in the forecast; the rest is the law's."""
    decades: float
    """How far beyond the data, in decades of compute."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        span = self.params_interval
        return {
            "flops": self.flops,
            "params": self.params,
            "tokens": self.tokens,
            "loss": self.loss,
            "low": self.low,
            "high": self.high,
            "level": self.level,
            "parts": {
                "law": _part(self.law, self.law_interval),
                "frontier": None if self.frontier is None else _part(self.frontier, self.frontier_interval),
                "frontier_weight": self.weight,
                "disagreement": None if self.frontier is None else float(np.log(self.frontier / self.law)),
            },
            "experts": self.experts,
            "recurrence": self.recurrence,
            "params_low": None if span is None else span[0],
            "params_high": None if span is None else span[1],
            "decades_beyond": self.decades,
        }


def _part(loss: float, span: tuple[float, float] | None) -> dict[str, float | None]:
    return {"loss": loss, "low": None if span is None else span[0], "high": None if span is None else span[1]}


@dataclass(frozen=True, eq=False, repr=False)
class Forecasts:
    """Forecasts from one sweep, with the law and the fit behind them."""

    forecasts: tuple[Forecast, ...]
    law: ScalingLaw
    source: str
    fit: Fit | None
    """The fit of the sweep; None where a law file was given."""
    optimal: bool
    """Whether the runs are compute-optimal; otherwise their sizes were given."""
    repetition: str = ""
    """How often tokens are seen, and whose discount serves where the law has no term for that."""

    def __iter__(self) -> Any:
        return iter(self.forecasts)

    def __len__(self) -> int:
        return len(self.forecasts)

    def __getitem__(self, index: int) -> Forecast:
        return self.forecasts[index]

    def approaches(self) -> tuple[Approach, ...]:
        """Return N*, D* and L* by envelope, isoFLOP curves and law at the largest budget; none without the runs."""
        if self.fit is None or self.law.frontier is None:
            return ()
        return approaches(self.fit.observations, self.law, max(each.flops for each in self.forecasts))

    def table(self) -> Table:
        """Return one row for each forecast."""
        rows = []
        for each in self.forecasts:
            row = {name: value for name, value in each.to_dict().items() if name != "parts"}
            rows.append(row | {"law": each.law, "frontier": each.frontier})
        return Table.from_records(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        curve = self.law.frontier
        return {
            "kind": "forecasts",
            "source": self.source,
            "law": self.law.name,
            "forecasts": [each.to_dict() for each in self.forecasts],
            "frontier": None if curve is None else {"flops": curve.flops, "runs": curve.runs, **curve.coefficients()},
            "approaches": [asdict(each) for each in self.approaches()],
            "degenerate": list(self.law.degenerate),
            "repetition": self.repetition,
        }

    def summary(self, verbose: bool = False) -> str:
        """Return the forecasts for the terminal: the answer, then how far to trust it."""
        first = self.forecasts[0]
        lines = [_sentence(first, self.optimal, self.law), ""]
        if len(self.forecasts) > 1:
            lines += [_table(self.forecasts), ""]
        lines += _trust(self)
        if verbose:
            lines += _details(self)
        warnings = [] if self.fit is None else warning_lines(self.fit, None if verbose else 2)
        return "\n".join([*lines, *warnings])

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        first = self.forecasts[0]
        more = f" and {len(self) - 1} more" if len(self) > 1 else ""
        span = f"{first.loss:.4f} ({first.low:.4f} to {first.high:.4f})"
        return f"<Forecasts of {self.law.name}: loss {span} at {format_power(first.flops)} FLOPs{more}>"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _sentence(each: Forecast, optimal: bool, law: ScalingLaw) -> str:
    digits = decimals((each.high - each.low) / 2)
    model = f"{format_count(each.params)} parameters on {format_count(each.tokens)} tokens"
    design = ", ".join(
        f"{symbol} = {value:g}" for symbol, value in (("E", each.experts), ("R", each.recurrence)) if value != 1
    )
    best = "compute-optimal " if optimal else ""
    if design and optimal:  # the best size of this design; a plan compares designs
        best, design = f"compute-optimal at {design}: ", ""
    elif design:
        design = f", {design}"
    return (
        f"Loss {each.loss:.{digits}f} ({each.level:.0%} for one run: {each.low:.{digits}f} to {each.high:.{digits}f}) "
        f"at {format_power(each.flops)} FLOPs,\n{best}{model}{design}."
    )


def _table(rows: Sequence[Forecast]) -> str:
    columns = ("FLOPs", "N", "D", "loss", f"{rows[0].level:.0%} for one run", "law", "frontier", "decades out")
    cells = []
    for each in rows:
        digits = decimals((each.high - each.low) / 2)
        cells.append((
            format_power(each.flops), format_count(each.params), format_count(each.tokens), f"{each.loss:.{digits}f}",
            f"{each.low:.{digits}f} to {each.high:.{digits}f}", f"{each.law:.{digits}f}",
            "" if each.frontier is None else f"{each.frontier:.{digits}f}", f"{each.decades:.1f}",
        ))  # fmt: skip
    return text_table(columns, cells)


def _trust(result: Forecasts) -> list[str]:
    far, lines = max(each.decades for each in result.forecasts), list[str]()
    tested = f"; the intervals were tested to {TESTED:g} decades" if far > TESTED else ""
    lines += fact("beyond", f"{far:.1f} decades beyond the largest run{tested}" if far > 0 else "inside the data")
    last = result.forecasts[-1]
    curve = result.law.frontier
    if curve is not None and last.frontier is not None:
        apart = 100 * np.log(last.frontier / last.law)
        c = curve.coefficients()
        lines += fact("parts", f"law {last.law:.4g}, frontier {last.frontier:.4g} ({apart:+.1f}%), "
                      f"the frontier counts {last.weight:.0%}")  # fmt: skip
        lines += fact("frontier", f"L* = {c['c']:.3g} + {c['a']:.3g} (C / {format_power(curve.flops)})^-{c['b']:.2g}, "
                      f"{curve.runs} runs within 1% of it")  # fmt: skip
    elif result.law.fitted:
        lines += fact("parts", "the law alone: it has no compute-optimal frontier")
    lines += fact("repetition", result.repetition) if result.repetition else []
    lines += fact("data", f"{_without_folders(result.source)}; law {result.law.form}")
    return lines


def _without_folders(source: str) -> str:
    """Return ``fitted to runs.csv`` for ``fitted to /data/runs.csv``."""
    *before, path = source.rpartition("fitted to ")
    return "".join([*before, Path(path).name if "://" not in path else path])


def _details(result: Forecasts) -> list[str]:
    lines = []
    if rows := result.approaches():
        columns = ("approach", "points", "N* ~ C^", "N*", "D*", "L*")
        cells = [(each.approach, str(each.points), f"{each.size_exponent:.3f}", format_count(each.size),
                  format_count(each.tokens), f"{each.loss:.4f}") for each in rows]  # fmt: skip
        losses, sizes = [each.loss for each in rows], [each.size for each in rows]
        lines += ["", f"At {format_power(rows[0].flops)} FLOPs:", text_table(columns, cells, left=("approach",))]
        apart = f"{np.log(max(losses) / min(losses)):.1%} in the loss and {max(sizes) / min(sizes):.2g}x in N*"
        lines += [f"They differ by {apart}."]
    for each in result.forecasts:
        if each.params_interval is not None:
            low, high = each.params_interval
            lines += fact("N*", f"{format_power(each.flops)} FLOPs: {format_count(low)} to {format_count(high)} "
                          f"({each.level:.0%}, of the curve)")  # fmt: skip
    return lines


def forecast(
    data: Any,
    *,
    flops: Any = None,
    params: Any = None,
    tokens: Any = None,
    loop_params: Any = None,
    total_params: Any = None,
    experts: float | None = None,
    recurrence: float | None = None,
    unique_tokens: Any = None,
    level: float = 0.9,
    resamples: int = RESAMPLES,
    seed: int = 0,
    extrapolate: bool = False,
    allow_degenerate: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Forecasts:
    """Forecast the loss of larger runs from a sweep, with an interval for one run.

    ``data`` is what ``loopscale.fitting.fit`` takes, or a fit, a law or a law file. ``flops`` asks for the
    compute-optimal run of a budget (or of several); ``params`` with ``tokens`` or ``flops`` for one run.
    ``loop_params`` (N_loop), ``total_params`` (N_total), ``experts`` (E) and ``recurrence`` (R) describe a looped or
    sparse model; where they are left out, the proportions of the sweep's own models serve. ``unique_tokens`` (U) are
    the different tokens of one run; a law without a term for repetition takes the published discount of dense models.
    ``options`` are those of ``fit``.
    """
    tails(level)
    result, law, source = _law_of(data, resamples, seed, progress, options)
    if law.degenerate and not allow_degenerate:
        raise WithheldError(why_degenerate(law), ["allow_degenerate"], REFIT)
    if law.spread is None:
        raise InputError(f"law {law.name} has no predictive interval", remedy="fit it again with resampling")
    default_E, default_R = default_variables(law)
    E = default_E if experts is None else float(experts)
    R = default_R if recurrence is None else float(recurrence)
    check_variables(law, E, R)
    unique = None if unique_tokens is None else count_of(unique_tokens, "unique_tokens")
    own, law = law, law if unique is None else with_repetition(law)
    if params is None and tokens is not None:
        raise InputError("`tokens` needs `params`, the size of the model", remedy="or give `flops` alone")
    if params is None and flops is None:
        raise InputError("give `flops`, or `params` and `tokens`")
    if params is not None and (tokens is None) == (flops is None):
        raise InputError("give `tokens` or `flops` with `params`, one of them")
    models = _models(result, law, E, R, experts is None and recurrence is None)
    if params is None:
        for name, stated in (("loop_params", loop_params), ("total_params", total_params), ("unique_tokens", unique)):
            if stated is not None:
                raise InputError("it describes one run", field=name, remedy="give `params` too")
        rows = [_optimal(law, C, models, level) for C in _several(flops, "flops")]
    else:
        rows = [
            _one(law, N, D, C, models, loop_params, total_params, unique, level)
            for N, D, C in _runs(params, tokens, flops)
        ]
    far = max(each.decades for each in rows)
    if far > FARTHEST and not extrapolate:
        raise WithheldError(
            f"no answer: {far:.1f} decades of compute beyond the data; intervals were tested to {TESTED:g}",
            ["extrapolate"],
            "measure runs nearer to it first (`loopscale next` chooses them)",
        )
    runs = Points(1.0, [row.tokens for row in rows], unique_tokens=unique)
    return Forecasts(tuple(rows), law, source, result, params is None, repetition_text(own, runs))


def _law_of(
    data: Any, resamples: int, seed: int, progress: Progress | None, options: dict[str, Any]
) -> tuple[Fit | None, ScalingLaw, str]:
    if isinstance(data, Fit):
        result = data if data.spread is not None else data.resample(resamples, seed=seed, progress=progress)
        return result, result.law, result.observations.source
    if isinstance(data, ScalingLaw) or is_law_file(data):
        law = find_law(data)
        return None, law, law.source or law.name
    observations = Observations.of(data)
    result = fit(observations, resamples=0, seed=seed, **options)
    result = result.resample(resamples, seed=seed, progress=progress)
    return result, result.law, observations.source


def _several(values: Any, name: str) -> list[float]:
    if isinstance(values, str):
        return [count_of(part, name) for part in values.split(",")]
    return [count_of(value, name) for value in (values if isinstance(values, list | tuple | np.ndarray) else [values])]


def _runs(params: Any, tokens: Any, flops: Any) -> list[tuple[float, float | None, float | None]]:
    sizes = _several(params, "params")
    counts = _several(tokens if flops is None else flops, "tokens" if flops is None else "flops")
    if len(sizes) != len(counts) and 1 not in (len(sizes), len(counts)):
        raise InputError(f"`params` has {len(sizes)} values and `tokens` {len(counts)}", remedy="give as many of each")
    sizes, counts = sizes * (len(counts) if len(sizes) == 1 else 1), counts * (len(sizes) if len(counts) == 1 else 1)
    pairs = zip(sizes, counts, strict=True)
    return [(N, D, None) for N, D in pairs] if flops is None else [(N, None, C) for N, C in pairs]


def _models(result: Fit | None, law: ScalingLaw, E: float, R: float, usual: bool) -> Proportions:
    """Return the proportions of models with these experts and passes: those of the sweep's own, where it has any."""
    if usual and law.frontier is not None:
        return law.frontier.models
    if result is None:
        reference = DENSE if law.frontier is None else law.frontier.models
        return Proportions(E, R, reference.loop_share, reference.m if reference.experts == E else _ratio(reference, E))
    points = result.observations.points
    rows = (points.experts == E) & (points.recurrence == R)
    if rows.any():
        return proportions(points, rows)
    share = 0.0 if points.loop is None else float(np.median(points.loop / points.active))
    if E == 1 or points.total is None:
        return Proportions(E, R, share, 1.0)
    sparse = points.experts > 1
    if not sparse.any():
        return Proportions(E, R, share, 1.0)
    grown = float(np.median((points.total / points.active - 1)[sparse] / (points.experts - 1)[sparse]))
    return Proportions(E, R, share, 1 / (1 + grown * (E - 1)))


def _ratio(reference: Proportions, E: float) -> float:
    """Return m at other experts, of models whose experts are as large as the reference's."""
    if reference.experts <= 1:
        return 1.0
    return 1 / (1 + (1 / reference.m - 1) * (E - 1) / (reference.experts - 1))


def _optimal(law: ScalingLaw, flops: float, models: Proportions, level: float) -> Forecast:
    curve = law.frontier
    cost = BY_SIZE if curve is None else curve.cost
    _, by_law = lowest(law, np.array([flops]), models, cost)
    if not np.isfinite(by_law[0]):
        raise InputError(
            f"law {law.name} has no lowest loss between few and many parameters at {format_power(flops)} FLOPs"
        )
    size = by_law if curve is None or models != curve.models else curve.optimal_size(flops, by_law)
    N = float(size[0])
    D = float(cost.tokens(flops, N, models.unroll()))
    span = None
    if law.resamples is not None:
        low, high = np.exp(np.quantile(np.log(_drawn_sizes(law, flops, models)), tails(level)))
        minima = N**2 / float(by_law[0])  # of which N is half way to the law's
        span = min(float(low), minima), max(float(high), minima)
    return _forecast(law, models.points(np.array(N), np.array(D)), flops, level, span)


def _drawn_sizes(law: ScalingLaw, flops: float, models: Proportions) -> FloatArray:
    """Return N*(C) of each resampled law."""
    cost = BY_SIZE if law.frontier is None else law.frontier.cost
    N = np.sqrt(flops / costs.TRAIN) * np.exp(np.linspace(-REACH, REACH, 481))
    losses = law.resampled(models.points(N, cost.tokens(flops, N, models.unroll())))
    return np.asarray(N[losses.argmin(axis=1)])


def _one(
    law: ScalingLaw,
    N: float,
    D: float | None,
    flops: float | None,
    models: Proportions,
    loop: Any,
    total: Any,
    unique: float | None,
    level: float,
) -> Forecast:
    cost = BY_SIZE if law.frontier is None else law.frontier.cost
    N_loop = models.loop_share * N if loop is None else count_of(loop, "loop_params")
    N_total = N / models.m if total is None else count_of(total, "total_params")
    if D is None:
        unroll = 1 + (models.recurrence - 1) * N_loop / N
        D = float(cost.tokens(flops, N, unroll))  # type: ignore[arg-type]
    points = Points(
        np.array(N), np.array(D), models.recurrence, models.experts, np.array(N_loop), np.array(N_total),
        None if unique is None else np.array(unique),
    )  # fmt: skip
    check_variables(law, points.experts, points.recurrence)
    return _forecast(law, points, float(cost.flops(points)), level, None)


def _forecast(
    law: ScalingLaw, points: Points, flops: float, level: float, sizes: tuple[float, float] | None
) -> Forecast:
    new_run: LawForecast = law.forecast(points, level)
    band = None if law.resamples is None else law.interval(points, level)
    curve: Frontier | None = law.frontier
    span = None
    if curve is not None and new_run.frontier is not None:
        drawn = np.exp(np.quantile(curve.log_losses(flops), tails(level)))
        middle = float(np.exp(curve.log_loss(flops)[0]))
        span = float(new_run.frontier * drawn[0] / middle), float(new_run.frontier * drawn[1] / middle)
    return Forecast(
        flops=float(flops),
        params=float(points.active),
        tokens=float(points.tokens),
        experts=float(points.experts),
        recurrence=float(points.recurrence),
        loss=float(new_run.loss),
        low=float(new_run.low),
        high=float(new_run.high),
        level=level,
        params_interval=sizes,
        law=float(new_run.law),
        law_interval=None if band is None else (float(band[0]), float(band[1])),
        frontier=None if new_run.frontier is None else float(new_run.frontier),
        frontier_interval=span,
        weight=float(new_run.weight),
        decades=float(new_run.decades),
    )
