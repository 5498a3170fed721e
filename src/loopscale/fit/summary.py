"""A fit in words and numbers, to read or to paste into a paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from loopscale.fit.diagnose import fit_covariance, run_share, warnings
from loopscale.fit.fitting import Fit, Recipe, Scheme
from loopscale.fit.resample import coefficient_intervals, problem_of
from loopscale.laws import ScalingLaw
from loopscale.quantities import format_count

LEVEL = 0.9
SCHEMES = {
    Scheme.RUNS: "resamples of whole runs",
    Scheme.OBSERVATIONS: "resamples of single rows, as if those of one run were independent",
    Scheme.PAPER: "subsets of 90% of the rows, as in the paper: too narrow",
}


def summary(fit: Fit) -> str:
    """Return the fit as plain text: data, form, procedure, coefficients, quality, and what to beware of."""
    lines = [
        f"{fit.law.name}: {fit.law.form}" + ("  [DEGENERATE]" if fit.degenerate else ""),
        "",
        *_head(fit),
        "",
        *_coefficients(fit),
    ]
    if found := warnings(fit):
        lines += ["", "Beware", *(f"- {each}" for each in found)]
    return "\n".join(lines)


def values(found: Fit) -> dict[str, Any]:
    """Return the fit as plain values for JSON."""
    intervals = None if found.law.resamples is None else coefficient_intervals(found)
    return {
        "kind": "fit",
        "law": {**found.law.to_dict(), "resamples": None},
        "coefficients": dict(found.law.coefficients),
        "intervals": None if intervals is None else {name: list(span) for name, span in intervals.items()},
        "rmse": found.law.rmse,
        "r_squared": r_squared(found),
        "objective": found.objective,
        "delta": found.delta,
        "starts": found.starts,
        "agreeing": found.agreeing,
        "at_bound": list(found.at_bound),
        "degenerate": list(found.degenerate),
        "warnings": list(warnings(found)),
    }


def law_with_warnings(fit: Fit) -> ScalingLaw:
    """Return the law as it is saved: what a reader of the fit must know goes with it."""
    return replace(fit.law, note="; ".join(warnings(fit)))


def r_squared(fit: Fit) -> float:
    """Return the share of the losses' variance that the law explains."""
    loss = fit.observations.loss
    error = fit.law(fit.observations.points) - loss
    spread = float(np.sum((loss - loss.mean()) ** 2))
    return 1 - float(error @ error) / spread if spread > 0 else float("nan")


def _head(fit: Fit) -> list[str]:
    data, span = fit.observations, fit.law.fitted_range
    counted = data.counts.value.replace("-", " ")
    rows = {
        "data": f"{len(data):,} losses of {len(data.runs):,} runs; {data.source}",
        "range": f"N {_span(span.size)} ({counted}), D {_span(span.tokens)}, "
        f"E {_span(span.experts)}, R {_span(span.recurrence)}",
        "objective": f"{fit.objective:.6g} = sum of Huber({fit.delta:.4g}) on ln loss; {len(fit.free)} coefficients",
        "procedure": _procedure(fit),
        "quality": f"RMSE {fit.law.rmse:.4f} nats, R2 {r_squared(fit):.5f}, "
        f"{100 * run_share(fit):.0f}% of the residual variance shared within runs",
        "intervals": _intervals(fit),
    }
    notes = {"notes": "; ".join(data.notes)} if data.notes else {}
    return [f"{name:<10} {text}" for name, text in (rows | notes).items()]


def _procedure(fit: Fit) -> str:
    if fit.recipe is Recipe.PAPER:
        return "the paper's: curve_fit, then L-BFGS-B with finite differences, R = 1 first; one start"
    return f"exact gradients within bounds; {fit.agreeing} of {fit.starts} starts end within 0.1% of the best"


def _intervals(fit: Fit) -> str:
    if fit.law.resamples is None or fit.scheme is None:
        return "standard errors over runs, from the Jacobian; resample(fit) gives intervals"
    return f"{LEVEL:.0%}, {len(fit.law.resamples)} {SCHEMES[fit.scheme]}"


def _coefficients(fit: Fit) -> list[str]:
    resampled = fit.law.resamples is not None
    spans = _resampled_spans(fit) if resampled else _error_spans(fit)
    heading = f"{LEVEL:.0%} interval" if resampled else "standard error"
    lines = [f"{'coefficient':<12}{'estimate':>12}  {heading:<24}meaning (N and D in billions)"]
    for term in fit.law.terms:
        held = "fixed" if term.name in fit.fixed else spans[term.name]
        lines.append(f"{term.name:<12}{fit.law.coefficients[term.name]:>12.5g}  {held:<24}{term.meaning}")
    return lines


def _resampled_spans(fit: Fit) -> dict[str, str]:
    return {name: f"{low:.4g} to {high:.4g}" for name, (low, high) in coefficient_intervals(fit, LEVEL).items()}


def _error_spans(fit: Fit) -> dict[str, str]:
    """Write standard errors in the coefficient's own unit, whatever it was searched in."""
    problem, errors = problem_of(fit), fit_covariance(fit).errors
    spans = dict.fromkeys(fit.law.names, "on a bound")
    for name, logarithmic in zip(problem.free_names, problem.logarithmic, strict=True):
        if name in errors:
            value = errors[name] * (fit.law.coefficients[name] if logarithmic else 1.0)
            spans[name] = f"± {value:.3g}"
    return spans


def _span(span: tuple[float | None, float | None]) -> str:
    low, high = (format_count(0.0 if end is None else end) for end in span)
    return low if low == high else f"{low} to {high}"
