"""What single runs and the objective do to a law: refits without each run, and with other deltas, in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.quantities import format_power
from loopscale.core.tables import Table
from loopscale.core.text import text_table
from loopscale.fitting.resample import refit, varies
from loopscale.fitting.search import finish, without_far_rows
from loopscale.scaling import Points, Role, Term, inputs
from loopscale.scaling.points import BILLIONS

if TYPE_CHECKING:
    from loopscale.fitting.result import Fit

DELTAS = (1e-4, 1e-3, 1e-2, np.inf)
BEYOND = 10.0
"""How many times the largest training compute the prediction is that the table follows."""
SHOWN = 5
"""Runs that texts show, those that matter most."""


def sensitivity(fit: Fit) -> Table:
    """Return how the law changes without each run, and with other deltas of Huber's loss; the largest change first.

    Columns: what was changed, the irreducible loss and the exponents, the loss predicted at ten times the largest
    training compute (the largest run with size and tokens both grown), and its change in parts of the loss.
    """
    return _changes(fit)[0]


def _changes(fit: Fit) -> tuple[Table, int]:
    """Return the table, and how many of its first rows are not refits without a run."""
    problem, best, data = fit.problem, fit.optimum, fit.observations
    squares = without_far_rows(problem, best)
    labels, points = ["as fitted"], [best]
    for delta in DELTAS:
        if not np.isclose(delta, fit.delta):
            labels.append("least squares" if np.isinf(delta) else f"delta {delta:g}")
            points.append(finish(problem, best[None, :], delta, squares).u_SP[0])
    others = len(labels)
    runs = [run for run in data.runs if varies(problem, data.run != run)]
    if runs:
        weights = np.array([(data.run != run).astype(float) for run in runs])
        weights = weights if problem.weight is None else weights * problem.weight
        without = refit(problem, best, fit.delta, weights, rough=True)
        loss = _beyond(fit, np.vstack([best, without]))
        order = np.argsort(-np.abs(np.log(loss[1:] / loss[0])), kind="stable")
        labels += [f"without run {runs[k]}" for k in order]
        points += [without[k] for k in order]
    values, loss = problem.vectors(np.array(points)), _beyond(fit, np.array(points))
    shown = {name: values[:, problem.names.index(name)].tolist() for name in _names(fit)}
    table = Table({
        "change": labels, **shown, "loss": loss.tolist(), "difference": (loss / loss[0] - 1).tolist(),
    })  # fmt: skip
    return table, others


def _names(fit: Fit) -> list[str]:
    """Return the coefficients to show: the irreducible loss, the exponents and the gain from looping."""
    terms = [term for term in fit.law.terms if term.name in fit.free]
    main = [t.name for t in terms if t.term is Term.IRREDUCIBLE or t.role is Role.EXPONENT]
    gain = [t.name for t in terms if t.term is Term.RECURRENCE][:1]
    return list(dict.fromkeys(main + gain))  # the gain of a power mapping is an exponent


def _beyond(fit: Fit, u_SP: FloatArray) -> FloatArray:
    """Return the loss that each point of the search predicts for the largest run, grown."""
    p, problem = fit.observations.points, fit.problem
    k = int(np.argmax(p.train_flops))
    size, tokens = np.sqrt(BEYOND), np.sqrt(BEYOND)
    grown = Points(
        p.active[[k]] * size, p.tokens[[k]] * tokens, p.recurrence[[k]], p.experts[[k]],
        None if p.loop is None else p.loop[[k]] * size, None if p.total is None else p.total[[k]] * size,
        None if p.unique_tokens is None else p.unique_tokens[[k]] * tokens,
    )  # fmt: skip
    columns = dict(zip(problem.names, problem.vectors(u_SP).T[:, :, None], strict=True))
    return np.asarray(problem.form.loss(columns, inputs(problem.form, grown, BILLIONS)))[:, 0]


def sensitivity_lines(fit: Fit, most: int = SHOWN) -> list[str]:
    """Return the table for a terminal: other deltas, and the runs that matter most."""
    table, others = _changes(fit)
    rows = list(table.records())
    names, signs = _names(fit), {term.name: term.published_sign for term in fit.law.terms}
    cells = [
        (row["change"], *(f"{signs[name] * row[name]:.4g}" for name in names), f"{row['loss']:.4f}",
         f"{row['difference']:+.2%}" if order else "")
        for order, row in enumerate(rows[: others + most])
    ]  # fmt: skip
    top = BEYOND * float(fit.observations.points.train_flops.max())
    columns = ("change", *names, f"loss at {format_power(top)}", "difference")
    lines = ["Sensitivity to single runs and to Huber's delta:", text_table(columns, cells, left=("change",))]
    if rest := rows[others + most :]:
        lines.append(f"The other {len(rest)} runs change that loss by at most {abs(rest[0]['difference']):.2%}.")
    return lines
