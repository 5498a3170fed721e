"""The work that takes long: a fit, a held-out comparison, a choice of runs. Plain values in, plain values out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from loopscale.app.requests import CompareRequest, FitOptions, NextRequest
from loopscale.fit import Fit, Observations, fit, identification, resample, residuals_by_axis, summary, values
from loopscale.fit.candidates import ladder_candidates
from loopscale.fit.design import next_runs
from loopscale.fit.forms import default_form
from loopscale.fit.holdout import compare
from loopscale.fit.slices import telling_slices
from loopscale.fit.summary import law_with_warnings
from loopscale.fit.targets import Goal, Target
from loopscale.laws import Counting
from loopscale.plan import plan

Say = Callable[[str, int, int], None]
"""Told what goes on, how much of it is done, and of how much."""
SHOWN = 2_000
"""Rows of a sweep that a chart shows."""
AVERAGED = 16
"""Refits that a choice of runs is averaged over, as `loopscale next` does."""


def read_sweep(text: str, options: FitOptions) -> Observations:
    """Read a sweep that a client sent."""
    return Observations.from_csv(text, source=options.name, counts=Counting(options.counts))


def fit_work(text: str, options: FitOptions, say: Say) -> dict[str, Any]:
    """Fit a sweep, resample it, and look at what is left over."""
    found = _fitted(text, options, options.resamples, say)
    say("Looking at what is left over", 0, 0)
    data = found.observations
    return {
        **values(found),
        "law": law_with_warnings(found).to_dict(),
        "form": found.law.form,
        "meanings": {term.name: term.meaning for term in found.law.terms},
        "fixed": list(found.fixed),
        "summary": summary(found),
        "rows": len(data),
        "runs": len(data.runs),
        "notes": list(data.notes),
        "slices": list(telling_slices(data)),
        "points": _points(found),
        "residuals": dict(residuals_by_axis(found).columns),
        "identification": dict(identification(found).columns),
    }


def compare_work(text: str, options: FitOptions, asked: CompareRequest, say: Say) -> dict[str, Any]:
    """Score every mapping on rows that it was not fitted to."""
    data = read_sweep(text, options)

    def told(done: int, total: int) -> None:
        say("Fitting without the held-out rows", done, total)

    found = compare(data, asked.hold_out, outer=options.outer, folds=asked.folds, seed=options.seed, progress=told)
    return {"kind": "comparison", **found.to_dict()}


def next_work(text: str, options: FitOptions, asked: NextRequest, say: Say) -> dict[str, Any]:
    """Choose the runs that would make a plan surest."""
    found = _fitted(text, options, AVERAGED, say)
    say("Weighing the candidates", 0, 0)
    aim = asked.plan
    planned = plan(aim.budget(), aim.space(), found.law, eps=aim.eps, rule=aim.chosen_rule).to_dict(aim.top)
    target = Target.of_plan(planned, found.observations.counts, Goal(asked.goal))
    pool = ladder_candidates(found.observations)
    design = next_runs(found, asked.budget, target, candidates=pool, most=asked.most)
    return {"kind": "design", **design.to_dict(), "runs": [asdict(run) for run in design.runs]}


def _fitted(text: str, options: FitOptions, resamples: int, say: Say) -> Fit:
    say("Fitting", 0, 0)
    data = read_sweep(text, options)
    outer, mapping = default_form(data, options.outer, options.mapping)
    found = fit(data, outer=outer, mapping=mapping, seed=options.seed, name=options.name)

    def told(done: int, total: int) -> None:
        say("Refitting resampled runs", done, total)

    return resample(found, count=resamples, seed=options.seed, workers=1, progress=told)


def _points(found: Fit) -> dict[str, list[float]]:
    """Return the rows as charts show them, evenly thinned where there are many."""
    data, points = found.observations, found.observations.points
    kept = np.unique(np.linspace(0, len(data) - 1, min(len(data), SHOWN)).round().astype(int))
    columns = {
        "observed": data.loss,
        "predicted": found.law(points),
        "residual": found.residuals,
        "size": points.active,
        "tokens": points.tokens,
        "experts": points.experts,
        "recurrence": points.recurrence,
    }
    return {name: column[kept].tolist() for name, column in columns.items()}
