"""Fit a law to observations, and the result: coefficients, intervals, warnings, predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, choice
from loopscale.core.files import read_json, write_json
from loopscale.core.quantities import count_of
from loopscale.core.tables import Table
from loopscale.fitting.data.read import Observations
from loopscale.fitting.diagnose import (
    Noise,
    coefficient_intervals,
    fit_covariance,
    law_note,
    noise_components,
    predictive_spread,
    r_squared,
    robust_deviation,
    robust_scale,
    run_effects,
    run_noise,
    warnings_of,
    why_degenerate,
)
from loopscale.fitting.problem import NO_TIES, Problem, build_problem, check_data
from loopscale.fitting.solver import (
    Progress,
    Scheme,
    SearchResult,
    check_finite,
    paper_recipe,
    random_starts,
    resample,
    search,
    staged_start,
    start_from,
    typical,
)
from loopscale.scaling import (
    BILLIONS,
    Counting,
    FittedRange,
    OuterLaw,
    Points,
    RecurrenceMapping,
    ScalingLaw,
    outer_law,
)
from loopscale.scaling import mapping as find_mapping

SCHEMA = 1
LEVEL = 0.9
"""Share of the distribution that intervals cover unless another is asked for."""
DELTA = 1e-3
STARTS = 8
RESAMPLES = 100
LEAST_DELTA = 1e-6
"""An estimated delta stays above this, so that exact data keep a smooth objective."""

REPEATED, HARMFUL = 1.02, 16.0
"""Epochs from which the law is chosen with repeated data, and with a loss that rises again."""
NOTHING: Mapping[str, float] = MappingProxyType({})
NO_BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType({})


class Recipe(Enum):
    """How the optimum is searched for; the objective is the same."""

    DEFAULT = "default"
    """Exact gradients, bounds, many starts."""
    PAPER = "paper"
    """The paper's own two stages with finite differences."""


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Predicted losses with two intervals: for a new run, and for the law alone. Arrays, or numbers for one point."""

    points: Points
    value: FloatArray
    """The law's loss, in nats per token."""
    low: FloatArray
    high: FloatArray
    """The predictive interval: where the loss of a new run should lie."""
    law_low: FloatArray
    law_high: FloatArray
    """The interval of the law alone: where resampled laws put their loss."""
    level: float

    def table(self) -> Table:
        """Return one row for each point."""
        p, shape = self.points, np.shape(self.value) or (1,)
        return Table.from_arrays(
            shape, N=p.active, D=p.tokens, E=p.experts, R=p.recurrence, loss=self.value, low=self.low,
            high=self.high, law_low=self.law_low, law_high=self.law_high,
        )  # fmt: skip

    def to_pandas(self) -> Any:
        """Return the table as a pandas data frame."""
        return self.table().to_pandas()

    def __repr__(self) -> str:
        if np.ndim(self.value):
            return f"<Prediction of {np.size(self.value)} losses with {self.level:.0%} intervals>"
        return (
            f"<Prediction {float(self.value):.4f} nats; {self.level:.0%} for a new run "
            f"{float(self.low):.4f} to {float(self.high):.4f}, for the law {float(self.law_low):.4f} to "
            f"{float(self.law_high):.4f}>"
        )

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """A fitted law, the data it was fitted to, and how well they determine it."""

    law: ScalingLaw
    observations: Observations
    objective: float
    """Sum of Huber(delta) over the residuals of ln loss."""
    delta: float
    recipe: Recipe
    starts: int
    agreeing: int
    """Starts that ended within 0.1% of the best objective."""
    free: tuple[str, ...]
    """Coefficients that were varied."""
    at_bound: tuple[str, ...]
    degenerate: tuple[str, ...]
    """Reasons why the coefficients mean nothing; empty for a sound fit."""
    fixed: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The user's own bounds; other coefficients keep those of their form."""
    tie: Mapping[str, str] = field(default_factory=dict)
    """Coefficients that take the value of another one."""
    scheme: Scheme | None = None
    """How ``law.resamples`` were drawn; None where there are none."""

    @cached_property
    def problem(self) -> Problem:
        """The optimisation problem that the fit solved."""
        law = self.law
        return build_problem(self.observations, law.outer, law.mapping, self.fixed, self.bounds, self.tie)

    @cached_property
    def linearised(self) -> tuple[FloatArray, FloatArray]:
        """Residuals at the optimum and their derivatives by each free coefficient, in search coordinates."""
        return self.problem.linearised(self.problem.point(self.law.coefficients))

    @cached_property
    def residuals(self) -> FloatArray:
        """Predicted minus observed ln loss, row by row."""
        predicted = self.law(self.observations.points)
        return np.asarray(np.log(predicted) - np.log(self.observations.loss))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the fit must know, each in a sentence."""
        return warnings_of(self)

    @cached_property
    def run_noise(self) -> float:
        """Standard deviation of ln loss of a new run about the law, within the range of the data."""
        return run_noise(self)

    @cached_property
    def noise_components(self) -> Noise | None:
        """The run noise as two parts, within a run and between runs; None where the data cannot tell them apart."""
        return noise_components(self)

    def run_effects(self) -> Table:
        """Return how far each run lies above the law in ln loss, as a random effect: run, rows, effect, error."""
        return run_effects(self)

    @property
    def r_squared(self) -> float:
        """The share of the losses' variance that the law explains."""
        return r_squared(self)

    def resample(
        self,
        count: int = RESAMPLES,
        *,
        scheme: Scheme | str = Scheme.RUNS,
        seed: int = 0,
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> Fit:
        """Return the fit with its law refitted on ``count`` resampled data sets; see :func:`fit` for the options."""
        return resample(self, scheme=scheme, count=count, seed=seed, workers=workers, progress=progress)

    def conf_int(self, level: float = LEVEL) -> Table:
        """Return each coefficient with its interval over the resampled laws: coefficient, estimate, low, high."""
        spans = coefficient_intervals(self, level)
        rows = [(name, self.law.coefficients[name], *spans[name]) for name in self.law.names]
        return Table(
            dict(zip(("coefficient", "estimate", "low", "high"), map(list, zip(*rows, strict=True)), strict=True))
        )

    def predict(
        self,
        N: Any,
        D: Any,
        *,
        E: Any = 1.0,
        R: Any = 1.0,
        loop: Any = None,
        total: Any = None,
        unique: Any = None,
        level: float = LEVEL,
    ) -> Prediction:
        """Predict the loss of new runs, with a predictive interval and the interval of the law alone.

        N and D are counts of parameters and tokens, numbers or text like ``"7B"``; arrays broadcast. N is counted as
        the data count it. ``loop`` (N_loop) is needed where R > 1 and the law has a recurrence mapping, ``total``
        (N_total) where E > 1 and the mapping depends on sparsity. ``unique`` (U) are the different tokens among D,
        all of them unless given.
        """
        sizes = {"loop": loop, "total": total, "unique": unique}
        points = Points(
            _counts(N, "N"), _counts(D, "D"), R, E, *(None if v is None else _counts(v, k) for k, v in sizes.items())
        )
        return self.predict_points(points, level)

    def predict_points(self, points: Points, level: float = LEVEL) -> Prediction:
        """Predict the loss at ``points``, as :meth:`predict` does."""
        value = self.law(points)
        law_low, law_high = self.law.interval(points, level)
        low, high = self.law.predictive_interval(points, level)
        return Prediction(points, value, low, high, law_low, law_high, level)

    def summary(self) -> str:
        """Return the fit as plain text: data, form, procedure, coefficients, quality and warnings."""
        return _summary(self)

    def plot(self) -> Any:
        """Return a matplotlib figure: predicted against observed loss, and residuals along each axis that varies."""
        return _plot(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values for JSON, without the data and the resampled laws."""
        spans = None if self.law.resamples is None else coefficient_intervals(self)
        return {
            "kind": "fit",
            "law": {**self.law.to_dict(), "resamples": None},
            "coefficients": dict(self.law.coefficients),
            "intervals": None if spans is None else {name: list(span) for name, span in spans.items()},
            "rmse": self.law.rmse,
            "r_squared": self.r_squared,
            "noise": _noise_record(self),
            "objective": self.objective,
            "delta": self.delta,
            "starts": self.starts,
            "agreeing": self.agreeing,
            "at_bound": list(self.at_bound),
            "degenerate": list(self.degenerate),
            "warnings": list(self.warnings),
        }

    def save(self, path: str | Path) -> None:
        """Write the fit with its data and resampled laws as JSON, for :meth:`load`."""
        write_json(path, _content(self))

    @classmethod
    def load(cls, path: str | Path) -> Fit:
        """Read a fit that :meth:`save` wrote."""
        return cls.from_dict(read_json(path), str(path))

    @classmethod
    def from_dict(cls, data: object, where: str = "fit") -> Fit:
        """Read a fit from the content of its file; ``where`` names its origin in errors."""
        return _from_content(data, where)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        state = ", degenerate" if self.degenerate else ""
        return (
            f"<Fit {self.law.name!r}: {self.law.form}; {len(self.observations)} losses of "
            f"{len(self.observations.runs)} runs, RMSE {self.law.rmse:.4f} nats{state}>"
        )

    def _repr_html_(self) -> str:
        from html import escape

        table = self.conf_int() if self.law.resamples is not None else _estimates(self)
        notes = "".join(f"<li>{escape(sentence)}</li>" for sentence in self.warnings)
        return f"<p>{escape(repr(self))}</p>{table._repr_html_()}" + (f"<ul>{notes}</ul>" if notes else "")


def fit(
    data: Any,
    *,
    outer: str | OuterLaw | None = None,
    mapping: str | RecurrenceMapping | None = None,
    fixed: Mapping[str, float] = NOTHING,
    bounds: Mapping[str, tuple[float, float]] = NO_BOUNDS,
    tie: Mapping[str, str] = NO_TIES,
    delta: float | None = DELTA,
    recipe: Recipe | str = Recipe.DEFAULT,
    starts: int = STARTS,
    seed: int = 0,
    warm: Mapping[str, float] | None = None,
    resamples: int = RESAMPLES,
    scheme: Scheme | str = Scheme.RUNS,
    workers: int | None = None,
    progress: Progress | None = None,
    name: str | None = None,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, float] | None = None,
    counts: Counting | str | None = None,
    keep: str | None = None,
    best_of: bool = False,
) -> Fit:
    """Fit a scaling law to observed losses: ``fit("runs.csv")`` is enough.

    ``data`` is a path (CSV, TSV, JSON lines, Parquet), a data frame of pandas, polars or pyarrow, the name of a public
    sweep, or :class:`Observations`; ``columns``, ``units`` and ``counts`` say how to read it where the headers do
    not. ``keep="D/N >= 20"`` keeps the rows for which an expression of the columns holds; ``best_of=True`` keeps the
    lowest loss of each model and token count. A column ``weight``, or the noise of each loss in a column ``loss_std``,
    weights the rows. The form follows from the data: with experts and recurrence where they vary. ``outer`` and
    ``mapping`` choose another one.

    Minimises the sum of Huber(``delta``) over the residuals of ln loss; a large delta means least squares, and None
    estimates it from the residuals. ``fixed`` holds coefficients at a value, ``bounds`` limits their range (both with
    counts in billions), ``tie={"alpha": "beta"}`` gives one the value of another. One start is staged (the base law on
    R = 1 first) or at ``warm``; the other ``starts`` - 1 are random over the whole box. ``recipe="paper"`` runs the
    paper's procedure instead, from one start.

    The law is refitted on ``resamples`` resampled data sets, whole runs drawn with replacement (``scheme="runs"``); 0
    leaves that out. ``progress`` is called with the number of refits done and the total.
    """
    observations = Observations.of(data, columns=columns, units=units, counts=counts, keep=keep, best_of=best_of)
    form, recurrence = choose_form(observations, outer, mapping)
    _check_options(delta, starts, resamples)
    check_data(observations, form, recurrence, fixed, tie)
    problem = build_problem(observations, form, recurrence, fixed, bounds, tie)
    check_finite(problem)
    kind = recipe if isinstance(recipe, Recipe) else choice(Recipe, recipe, "recipe")
    by = _by_paper(problem, warm, delta) if kind is Recipe.PAPER else _by_default(problem, starts, seed, warm, delta)
    label = name or (Path(data).name.split(".")[0] if isinstance(data, str | Path) else "fitted")
    result = _result(observations, problem, *by, kind, fixed, bounds, tie, label)
    if resamples:
        result = resample(result, scheme=scheme, count=resamples, seed=seed, workers=workers, progress=progress)
        drawn = f"{resamples} {SCHEMES[result.scheme]}" if result.scheme else ""
        law = replace(result.law, spread=predictive_spread(result, seed), resampled_by=drawn)
        result = replace(result, law=law)
    return replace(result, law=replace(result.law, note=law_note(result)))


def choose_form(
    data: Observations, outer: str | OuterLaw | None = None, mapping: str | RecurrenceMapping | None = None
) -> tuple[OuterLaw, RecurrenceMapping]:
    """Return the form to fit: the one given, else the richest that the data can determine."""
    points = data.points
    if outer is None:
        outer = "joint-moe" if np.any(points.experts > 1) else "chinchilla"
        epochs = float(np.max(points.tokens / points.unique))
        outer += "+overfit" if epochs > HARMFUL else "+repetition" if epochs > REPEATED else ""
    if mapping is None:
        sparse = points.total is not None and bool((points.m < 1).any())
        looped = "sparsity-conditional" if sparse else "bounded"
        mapping = looped if np.any(points.recurrence > 1) else "none"
    return (
        outer_law(outer),
        find_mapping(mapping) if isinstance(mapping, str) else mapping,
    )


def _by_default(
    problem: Problem, starts: int, seed: int, warm: Mapping[str, float] | None, delta: float | None
) -> tuple[SearchResult, float]:
    first = staged_start(problem) if warm is None else start_from(problem, warm)
    points = np.concatenate([first[None, :], random_starts(problem, starts - 1, seed)])
    best = search(problem, points, DELTA if delta is None else delta)
    if delta is not None:
        return best, delta
    estimated = estimated_delta(problem.residuals(best.u))
    return search(problem, np.concatenate([best.u[None, :], points]), estimated), estimated


def _by_paper(problem: Problem, warm: Mapping[str, float] | None, delta: float | None) -> tuple[SearchResult, float]:
    first = problem.point(typical(problem)) if warm is None else start_from(problem, warm)
    optima = paper_recipe(problem, first, DELTA if delta is None else delta)
    if delta is None:
        delta = estimated_delta(problem.residuals(optima.u_SP[0]))
        optima = paper_recipe(problem, first, delta)
    return SearchResult(optima.u_SP[0], float(optima.value_S[0]), optima), delta


def estimated_delta(residuals: FloatArray) -> float:
    """Return Huber's 1.345 standard deviations, the deviation taken from the median absolute residual."""
    return max(1.345 * robust_deviation(residuals), LEAST_DELTA)


def _result(
    data: Observations,
    problem: Problem,
    best: SearchResult,
    delta: float,
    recipe: Recipe,
    fixed: Mapping[str, float],
    bounds: Mapping[str, tuple[float, float]],
    tie: Mapping[str, str],
    name: str,
) -> Fit:
    predicted = np.exp(problem.residuals(best.u)) * data.loss
    law = ScalingLaw(
        problem.outer,
        problem.mapping,
        problem.coefficients(best.u),
        BILLIONS,
        data.counts,
        name=name,
        source=f"fitted to {data.source}",
        fitted=True,
        degenerate=why_degenerate(problem, best, delta, data, set(bounds)),
        rmse=float(np.sqrt(np.mean((predicted - data.loss) ** 2))),
        noise=robust_scale(predicted - data.loss, len(problem.free)),
        fitted_range=fitted_range(data),
    )
    return Fit(
        law=law,
        observations=data,
        objective=best.value,
        delta=delta,
        recipe=recipe,
        starts=len(best.optima.value_S),
        agreeing=int(best.agreeing.sum()),
        free=problem.free_names,
        at_bound=problem.at_bound(best.u),
        degenerate=law.degenerate,
        fixed=MappingProxyType(dict(fixed)),
        bounds=MappingProxyType(dict(bounds)),
        tie=MappingProxyType(dict(tie)),
    )


def fitted_range(data: Observations) -> FittedRange:
    """Return the span of the data along each axis."""
    p = data.points
    axes = [p.active, p.tokens, p.experts, p.recurrence]
    axes += [] if p.unique_tokens is None else [p.tokens / p.unique]
    spans = [(float(axis.min()), float(axis.max())) for axis in axes]
    return FittedRange(*spans)


def _check_options(delta: float | None, starts: int, resamples: int) -> None:
    if delta is not None and not delta > 0:
        raise InputError(f"delta is {delta}; it should be above zero, or None to estimate it")
    if starts < 1:
        raise InputError(f"starts is {starts}; it should be 1 or more")
    if resamples < 0:
        raise InputError(f"resamples is {resamples}; it should be zero (none) or more")


def _counts(value: Any, what: str) -> Any:
    """Return counts as numbers; text like ``"7B"`` is read."""
    if isinstance(value, str):
        return count_of(value, what)
    if isinstance(value, list | tuple):
        return [_counts(entry, what) for entry in value]
    return value


SCHEMES = {
    Scheme.RUNS: "resamples of whole runs",
    Scheme.OBSERVATIONS: "resamples of single rows, as if those of one run were independent",
    Scheme.NOISE: "refits to losses drawn with the fit's noise: too few runs to leave any out",
    Scheme.PAPER: "subsets of 90% of the rows, as in the paper: too narrow",
}


def _summary(fit: Fit) -> str:
    lines = [
        f"{fit.law.name}: {fit.law.form}" + ("  [DEGENERATE]" if fit.degenerate else ""),
        "",
        *_head(fit),
        "",
        *_coefficients(fit),
    ]
    if fit.warnings:
        lines += ["", "Warnings", *(f"- {sentence}" for sentence in fit.warnings)]
    return "\n".join(lines)


def _head(fit: Fit) -> list[str]:
    data, span = fit.observations, fit.law.fitted_range
    counted = ("taken as " if data.counts_assumed else "") + data.counts.value.replace("-", " ")
    rows = {
        "data": f"{len(data):,} losses of {len(data.runs):,} runs; {data.source}",
        "range": f"N {_span(span.size, 1e9)} ({counted}), D {_span(span.tokens, 1e9)}, "
        f"E {_span(span.experts)}, R {_span(span.recurrence)}",
        "objective": f"{fit.objective:.6g} = sum of Huber({fit.delta:.4g}) on ln loss; {len(fit.free)} coefficients",
        "procedure": _procedure(fit),
        "quality": f"RMSE {fit.law.rmse:.4f} {data.loss_unit}, R2 {fit.r_squared:.5f}; {_noise(fit)}",
        "prediction": _spread(fit),
        "intervals": _intervals(fit),
    }
    notes = {"notes": "; ".join(data.notes)} if data.notes else {}
    return [f"{name:<10} {text}" for name, text in (rows | notes).items()]


def _noise(fit: Fit) -> str:
    """Return the noise floor: of a new run, and its parts between runs and within them."""
    total = f"noise floor {fit.run_noise:.2%} of the loss"
    if (parts := fit.noise_components) is not None:
        return f"{total} ({parts.run:.2%} between runs, {parts.observation:.2%} within a run)"
    few = len(fit.observations.runs) < len(fit.observations)
    return f"{total}{' (too few runs to tell noise between runs from noise within)' if few else ' between runs'}"


def _noise_record(fit: Fit) -> dict[str, float | None]:
    """Return standard deviations of ln loss: of a new run, and its two parts where the data tell them apart."""
    parts = fit.noise_components
    between, within = (None, None) if parts is None else (parts.run, parts.observation)
    return {"new_run": fit.run_noise, "between_runs": between, "within_run": within}


def _spread(fit: Fit) -> str:
    spread = fit.law.spread
    if spread is None:
        return "none; resampling gives predictive intervals"
    return (
        f"error of the law {spread.growth:.1%} one decade of compute beyond the data ({spread.backtests} backtests "
        "and experience with other sweeps)"
    )


def _procedure(fit: Fit) -> str:
    if fit.recipe is Recipe.PAPER:
        return "the paper's: curve_fit, then L-BFGS-B with finite differences, R = 1 first; one start"
    return f"exact gradients within bounds; {fit.agreeing} of {fit.starts} starts end within 0.1% of the best"


def _intervals(fit: Fit) -> str:
    if fit.law.resamples is None or fit.scheme is None:
        return "standard errors over runs, from the Jacobian; resampling gives intervals"
    return f"{LEVEL:.0%}, {len(fit.law.resamples)} {SCHEMES[fit.scheme]}"


def _coefficients(fit: Fit) -> list[str]:
    resampled = fit.law.resamples is not None
    spans = _resampled_spans(fit) if resampled else _error_spans(fit)
    heading = f"{LEVEL:.0%} interval" if resampled else "standard error"
    lines = [f"{'coefficient':<12}{'estimate':>12}  {heading:<24}meaning (N and D in billions)"]
    for term in fit.law.terms:
        span = "fixed" if term.name in fit.fixed else spans[term.name]
        span = f"tied to {fit.tie[term.name]}" if term.name in fit.tie else span
        lines.append(f"{term.name:<12}{fit.law.coefficients[term.name]:>12.5g}  {span:<24}{term.meaning}")
    return lines


def _resampled_spans(fit: Fit) -> dict[str, str]:
    return {name: f"{low:.4g} to {high:.4g}" for name, (low, high) in coefficient_intervals(fit, LEVEL).items()}


def _error_spans(fit: Fit) -> dict[str, str]:
    """Return standard errors in the unit of each coefficient, also where it was searched on a log scale."""
    problem, errors = fit.problem, fit_covariance(fit).errors
    spans = dict.fromkeys(fit.law.names, "on a bound")
    for name, logarithmic in zip(problem.free_names, problem.logarithmic, strict=True):
        if name in errors:
            value = errors[name] * (fit.law.coefficients[name] if logarithmic else 1.0)
            spans[name] = f"± {value:.3g}"
    return spans


def _span(span: tuple[float | None, float | None], unit: float = 1.0) -> str:
    low, high = (f"{end or 0.0:g}" if unit == 1 else f"{(end or 0.0) / unit:.3g}B" for end in span)
    return low if low == high else f"{low} to {high}"


def _estimates(fit: Fit) -> Table:
    names = list(fit.law.names)
    return Table({"coefficient": names, "estimate": [fit.law.coefficients[name] for name in names]})


def _plot(fit: Fit) -> Any:
    from matplotlib.figure import Figure  # half a second, which only figures should cost

    data, p = fit.observations, fit.observations.points
    axes_of = {"N": p.active, "D": p.tokens, "E": p.experts, "R": p.recurrence}
    varied = {name: values for name, values in axes_of.items() if np.ptp(values) > 0}
    figure = Figure(figsize=(3.4 * (1 + len(varied)), 3.2), layout="constrained")
    first, *rest = figure.subplots(1, 1 + len(varied), squeeze=False)[0]
    predicted = fit.law(p)
    span = [min(data.loss.min(), predicted.min()), max(data.loss.max(), predicted.max())]
    first.plot(span, span, color="0.6", linewidth=0.8)
    first.scatter(data.loss, predicted, s=8, alpha=0.6, linewidths=0)
    first.set(xlabel="observed loss (nats/token)", ylabel="predicted loss", title=fit.law.name)
    for axes, (name, values) in zip(rest, varied.items(), strict=True):
        axes.axhline(0.0, color="0.6", linewidth=0.8)
        axes.scatter(values, fit.residuals, s=8, alpha=0.6, linewidths=0)
        axes.set(xscale="log", xlabel=name, ylabel="ln predicted − ln observed", title=f"Residuals along {name}")
    return figure


def _content(fit: Fit) -> dict[str, Any]:
    data = fit.observations
    return {
        "kind": "fit",
        "schema": SCHEMA,
        "law": fit.law.to_dict(),
        "data": {
            "columns": data.columns(), "source": data.source, "counts": data.counts.value, "notes": list(data.notes),
            "counts_assumed": data.counts_assumed,
        },
        "objective": fit.objective,
        "delta": fit.delta if np.isfinite(fit.delta) else None,
        "recipe": fit.recipe.value,
        "starts": fit.starts,
        "agreeing": fit.agreeing,
        "free": list(fit.free),
        "at_bound": list(fit.at_bound),
        "degenerate": list(fit.degenerate),
        "fixed": dict(fit.fixed),
        "bounds": {name: list(span) for name, span in fit.bounds.items()},
        "tie": dict(fit.tie),
        "scheme": None if fit.scheme is None else fit.scheme.value,
    }  # fmt: skip


def _from_content(content: object, where: str) -> Fit:
    from loopscale.core.schemas import parse
    from loopscale.fitting.schema import FitFile  # pydantic takes a moment to import

    file = parse(FitFile, content, where)
    data = Observations.from_columns(dict(file.data.columns), file.data.source, file.data.counts)
    return Fit(
        law=ScalingLaw.from_dict(file.law, f"{where}: law"),
        observations=replace(data, notes=tuple(file.data.notes), counts_assumed=file.data.counts_assumed),
        objective=file.objective,
        delta=np.inf if file.delta is None else file.delta,
        recipe=file.recipe,
        starts=file.starts,
        agreeing=file.agreeing,
        free=tuple(file.free),
        at_bound=tuple(file.at_bound),
        degenerate=tuple(file.degenerate),
        fixed=file.fixed,
        bounds=file.bounds,
        tie=file.tie,
        scheme=file.scheme,
    )
