"""A job in a process of its own: ``python -m loopscale.app.worker`` reads one task and writes lines of JSON.

A process can be stopped at any moment, and a long fit in it leaves the server free to answer others.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from loopscale.app.schemas import CompareRequest, FitOptions, NextRequest
from loopscale.errors import InputError
from loopscale.files import finite
from loopscale.fit import Fit, Observations, fit, identification, residuals_by_axis
from loopscale.fit.compare import compare, suggest_slices
from loopscale.laws import Counting
from loopscale.next.candidates import Goal, Target, ladder_candidates
from loopscale.next.choose import next_runs
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
        **found.to_dict(),
        "law": found.law.to_dict(),
        "form": str(found.law.form),
        "meanings": {term.name: term.meaning for term in found.law.terms},
        "fixed": list(found.fixed),
        "summary": found.summary(),
        "rows": len(data),
        "runs": len(data.runs),
        "notes": list(data.notes),
        "slices": list(suggest_slices(data)),
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
    # The plan that new runs should make sure of may lie beyond the data: that is what they are for.
    planned = plan(
        aim.budget(), aim.space(), found.law, eps=aim.eps, rule=aim.rule, extrapolate=True, allow_degenerate=True
    ).to_dict(aim.top)
    target = Target.of_plan(planned, found.observations.counts, Goal(asked.goal))
    pool = ladder_candidates(found.observations)
    return next_runs(found, asked.budget, target, candidates=pool, most=asked.most).to_dict()


def _fitted(text: str, options: FitOptions, resamples: int, say: Say) -> Fit:
    say("Fitting", 0, 0)
    data = read_sweep(text, options)

    def told(done: int, total: int) -> None:
        say("Refitting resampled runs", done, total)

    return fit(
        data, outer=options.outer, mapping=options.mapping, seed=options.seed, name=options.name,
        resamples=resamples, workers=1, progress=told,
    )  # fmt: skip


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


NICENESS = 5
"""Jobs give way to answers that somebody waits for at a slider."""


def main() -> None:
    """Do the task on standard input; progress, and then the result or one sentence, go to standard output."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    task = json.load(sys.stdin)
    try:
        _write({"result": finite(_result(task))})
    except InputError as error:
        _write({"error": " ".join(str(error).split())})


def _result(task: dict[str, Any]) -> dict[str, Any]:
    text, options = task["csv"], FitOptions(**task["options"])
    if task["kind"] == "fit":
        return fit_work(text, options, _say)
    if task["kind"] == "comparison":
        return compare_work(text, options, CompareRequest(**task["asked"]), _say)
    return next_work(text, options, NextRequest(**task["asked"]), _say)


def _say(stage: str, done: int, total: int) -> None:
    _write({"stage": stage, "done": done, "total": total})


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line, allow_nan=False) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
