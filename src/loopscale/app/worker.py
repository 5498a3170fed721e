"""A job in its own process: ``python -m loopscale.app.worker`` reads one task and writes lines of JSON.

A process can be stopped at any moment, and a long fit in it does not delay the server's other answers.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from loopscale.app.schemas import BacktestRequest, CompareRequest, FitOptions, NextRequest, chosen_columns
from loopscale.choosing import Goal, Target, ladder_candidates, next_runs
from loopscale.core.devices import utilisation_of
from loopscale.core.errors import InputError
from loopscale.core.files import finite
from loopscale.core.quantities import format_duration, format_power
from loopscale.fitting import Fit, Observations, fit, identification, residuals_by_axis
from loopscale.fitting.backtest import backtest
from loopscale.fitting.compare import compare
from loopscale.fitting.forecasting import TESTED, forecast
from loopscale.fitting.frontier import proportions, stated_cost
from loopscale.fitting.residuals import outlying_rows
from loopscale.fitting.slices import suggest_slices
from loopscale.planning import plan
from loopscale.planning.compute import training_cost
from loopscale.scaling import Counting, Points, costs, lowest

Report = Callable[[str, int, int], None]
"""Called with the current stage, how much of it is done, and the total."""
SHOWN = 2_000
"""Rows of a sweep that a chart shows."""
CURVE = 61
"""Amounts of compute at which a fit's forecast is drawn."""
MOST_CURVES = 10
"""Kinds of model for which it is drawn."""
BACKTEST_RESAMPLES = 60
"""Refits behind the intervals of a backtest."""
AVERAGED = 16
"""Refits that a choice of runs is averaged over, as in `loopscale next`."""
NICENESS = 5
"""Jobs have a lower priority than answers that somebody waits for."""
PAGE_TERMS = {
    "mapping": "“Recurrence mapping”",
    "outer": "“Outer law”",
    "counts": "“Parameter counts”",
    "resamples": "“Refits for intervals”",
    "columns": "the columns below",
    "goal": "the goal",
    **{name: f"“loopscale fit {option}”" for name, option in (
        ("fixed", "--fix"), ("bounds", "--bound"), ("tie", "--tie"), ("units", "--units"), ("keep", "--keep"),
        ("strict", "--strict"), ("starts", "--starts"),
    )},
}  # fmt: skip
"""How the page calls the arguments of the library: its controls, or the command where it has none."""


def read_sweep(text: str, options: FitOptions) -> Observations:
    """Read a sweep that a client sent; where the loop's parameters are missing, its share of the model gives them."""
    data = Observations.from_csv(
        text,
        source=options.name,
        name=options.name,
        counts=Counting(options.counts),
        columns=chosen_columns(options.columns),
    )
    points = data.points
    if options.loop_share is None or points.loop is not None:
        return data
    values = {field.name: getattr(points, field.name) for field in fields(points)}
    note = f"assuming that N_loop is {options.loop_share:.0%} of the active parameters"
    looped = Points(**{**values, "loop": options.loop_share * points.active})
    return replace(data, points=looped, notes=(*data.notes, note))


def fit_work(text: str, options: FitOptions, report: Report) -> dict[str, Any]:
    """Fit a sweep, resample it, and return the law with its diagnostics."""
    fitted = _fitted(text, options, options.resamples, report)
    report("Computing diagnostics", 0, 0)
    data, content = fitted.observations, fitted.to_dict()
    del content["data"]  # the page has the file, and keeps results in the browser
    return {
        **content,
        **_curves(fitted),
        "form": str(fitted.law.form),
        "meanings": {term.name: term.meaning for term in fitted.law.terms},
        "signs": {term.name: term.published_sign for term in fitted.law.terms},
        "fixed": list(fitted.fixed),
        "summary": fitted.summary(),
        "rows": len(data),
        "runs": len(data.runs),
        "notes": list(data.notes),
        "slices": list(suggest_slices(data)),
        "next_budget": format_power(_next_budget(data), 1),
        "points": _points(fitted),
        "residuals": dict(residuals_by_axis(fitted).columns),
        "identification": dict(identification(fitted).columns),
    }


def compare_work(text: str, options: FitOptions, request: CompareRequest, report: Report) -> dict[str, Any]:
    """Score every mapping on held-out rows."""
    data = read_sweep(text, options)

    def progress(done: int, total: int) -> None:
        report("Fitting without the held-out rows", done, total)

    comparison = compare(
        data, request.hold_out, outer=options.outer, folds=request.folds, seed=options.seed, progress=progress
    )
    return {"kind": "comparison", **comparison.to_dict()}


def backtest_work(text: str, options: FitOptions, request: BacktestRequest, report: Report) -> dict[str, Any]:
    """Hide the largest runs, fit the rest, and predict what was hidden."""

    def progress(done: int, total: int) -> None:
        report("Refitting without the hidden runs", done, total)

    tested = backtest(
        read_sweep(text, options), decades=request.decades, rolling=False, resamples=BACKTEST_RESAMPLES, workers=1,
        outer=options.outer, mapping=options.mapping, seed=options.seed, progress=progress,
    )  # fmt: skip
    fitted, observed = tested.fit.observations, tested.hidden.loss
    values = {"error": tested.predicted, "error_low": tested.low, "error_high": tested.high}
    errors = {name: (100 * np.log(value / observed)).tolist() for name, value in values.items()}
    return {
        "kind": "backtest",
        **tested.to_dict(),
        "summary": tested.summary(),
        "hidden": {**tested.table().columns, **errors},
        "fitted": {"C": fitted.points.train_flops.tolist(), "error": (100 * tested.fit.residuals).tolist()},
    }


def next_work(text: str, options: FitOptions, request: NextRequest, report: Report) -> dict[str, Any]:
    """Choose the runs that would reduce the uncertainty of a plan most."""
    fitted = _fitted(text, options, AVERAGED, report)
    report("Weighing the candidates", 0, 0)
    aim = request.plan
    # The plan that new runs should make sure of may lie beyond the data: that is what they are for.
    planned = plan(
        aim.budget(),
        aim.space(fitted.law),
        fitted.law,
        eps=aim.eps,
        rule=aim.rule,
        extrapolate=True,
        allow_degenerate=True,
    )
    target = Target.of_plan(planned, fitted.observations.counts, Goal(request.goal), limit=aim.top)
    pool = ladder_candidates(fitted)
    chosen = next_runs(fitted, request.budget, target, candidates=pool, most=request.most).to_dict()
    share = utilisation_of(request.utilisation)
    for run in chosen["runs"]:
        cost = training_cost(run["flops"], request.device, 1, share, request.price)
        time = "under a second" if cost.hours < 1 / 3600 else format_duration(3600 * cost.hours)
        run |= {"hours": cost.hours, "time": time, "dollars": cost.dollars}
    return {**chosen, "device": request.device, "utilisation": share}


def _fitted(text: str, options: FitOptions, resamples: int, report: Report) -> Fit:
    report("Fitting", 0, 0)
    data = read_sweep(text, options)

    def progress(done: int, total: int) -> None:
        report("Refitting resampled runs", done, total)

    fitted = fit(data, outer=options.outer, mapping=options.mapping, seed=options.seed, resamples=0)
    return fitted.resample(resamples, seed=options.seed, workers=1, progress=progress)


def _points(fitted: Fit) -> dict[str, list[Any]]:
    """Return the rows as charts show them, evenly thinned where there are many; outliers are marked."""
    data, points = fitted.observations, fitted.observations.points
    odd = np.array(outlying_rows(fitted), dtype=int)
    kept = np.union1d(np.linspace(0, len(data) - 1, min(len(data), SHOWN)).round().astype(int), odd)
    columns = {
        "observed": data.loss,
        "predicted": fitted.law(points),
        "residual": fitted.residuals,
        "size": points.active,
        "tokens": points.tokens,
        "flops": points.train_flops,
        "experts": points.experts,
        "recurrence": points.recurrence,
        "run": data.run,
        "outlier": np.isin(np.arange(len(data)), odd),
    }
    return {name: column[kept].tolist() for name, column in columns.items()}


def _curves(fitted: Fit) -> dict[str, Any]:
    """Return the lowest loss at each compute, from the smallest run to as far as intervals were tested.

    There is one curve for each number of experts and passes of the sweep, those of the frontier of the runs first.
    Forecasts move the law to that frontier; ``by_law`` is the law as it is.
    """
    points = fitted.observations.points
    grid = np.geomspace(points.train_flops.min(), points.train_flops.max() * 10**TESTED, CURVE).tolist()
    kinds = sorted(set(zip(points.experts.tolist(), points.recurrence.tolist(), strict=True)))
    if fitted.law.frontier is not None:
        own = fitted.law.frontier.models
        kinds.sort(key=lambda kind: kind != (own.experts, own.recurrence))
    shown = [kinds[k] for k in np.unique(np.linspace(0, len(kinds) - 1, MOST_CURVES).round().astype(int))]
    names = ("flops", "params", "tokens", "loss", "low", "high", "decades")
    curves = []
    try:
        for E, R in shown:
            rows = forecast(fitted, flops=grid, experts=E, recurrence=R, extrapolate=True, allow_degenerate=True)
            values = {name: [float(f"{getattr(row, name):.7g}") for row in rows] for name in names}
            models = proportions(points, (points.experts == E) & (points.recurrence == R))
            values["by_law"] = np.exp(lowest(fitted.law, grid, models, stated_cost(fitted.observations))[0]).tolist()
            curves.append({"experts": E, "recurrence": R, "rows": values})
    except InputError as error:
        return {"curves": [], "curves_problem": error.told(PAGE_TERMS.get)}
    return {"curves": curves, "curves_problem": None}


def _next_budget(data: Observations) -> float:
    """Suggest compute for new runs: as much as the sweep took so far, so that they are of its scale."""
    p = data.points
    unrolled = costs.unrolled(p.active, 0.0 if p.loop is None else p.loop, p.recurrence)
    flops = costs.train_flops(unrolled, p.tokens)
    return float(sum(flops[data.run == run].max() for run in data.runs))


def main() -> None:
    """Do the task on standard input; write progress, then the result or one sentence, to standard output."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    task = json.load(sys.stdin)
    try:
        _write({"result": finite(_result(task))})
    except InputError as error:
        _write({"error": " ".join(error.told(PAGE_TERMS.get).split())})


def _result(task: dict[str, Any]) -> dict[str, Any]:
    text, options = task["csv"], FitOptions(**task["options"])
    if task["kind"] == "fit":
        return fit_work(text, options, _report)
    if task["kind"] == "comparison":
        return compare_work(text, options, CompareRequest(**task["request"]), _report)
    if task["kind"] == "backtest":
        return backtest_work(text, options, BacktestRequest(**task["request"]), _report)
    return next_work(text, options, NextRequest(**task["request"]), _report)


def _report(stage: str, done: int, total: int) -> None:
    _write({"stage": stage, "done": done, "total": total})


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line, allow_nan=False) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
