"""The text of a fit: data, form, procedure, coefficients, quality and warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopscale.core.tables import Table
from loopscale.fitting.covariance import coefficient_intervals, fit_covariance
from loopscale.fitting.resample import Scheme
from loopscale.fitting.search import Recipe

if TYPE_CHECKING:
    from loopscale.fitting.result import Fit

LEVEL = 0.9
"""Share of the distribution that intervals cover unless another is asked for."""
SCHEMES = {
    Scheme.RUNS: "resamples of whole runs",
    Scheme.OBSERVATIONS: "resamples of single rows, as if those of one run were independent",
    Scheme.NOISE: "refits to losses drawn with the fit's noise: too few runs to leave any out",
    Scheme.PAPER: "subsets of 90% of the rows, as in the paper: too narrow",
}
"""How the data were resampled, as a sentence continues."""


def summary(fit: Fit) -> str:
    """Return the fit as plain text."""
    lines = [
        f"{fit.name}: {fit.law.form}" + ("  [DEGENERATE]" if fit.degenerate else ""),
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
        **_prior(fit),
        "quality": f"RMSE {fit.law.rmse:.4f} {data.loss_unit}, R2 {fit.r_squared:.5f}; {_noise(fit)}",
        "prediction": _spread(fit),
        "intervals": _intervals(fit),
    }
    notes = {"notes": "; ".join(data.notes)} if data.notes else {}
    return [f"{name:<10} {text}" for name, text in (rows | notes).items()]


def _prior(fit: Fit) -> dict[str, str]:
    """Say which coefficients were pulled where, and how to fit without."""
    priors = [(name, term.prior) for name, term in fit.problem.terms.items() if fit.prior and term.prior is not None]
    if not priors:
        return {}
    pulled = ", ".join(f"{name} towards {prior.centre:g} ({prior.source})" for name, prior in priors)
    return {"prior": f"{pulled}; --no-prior, or prior=False, fits without"}


def _noise(fit: Fit) -> str:
    """Return the noise floor: of a new run, and its parts between runs and within them."""
    total = f"noise floor {fit.run_noise:.2%} of the loss"
    if (parts := fit.noise_components) is not None:
        return f"{total} ({parts.run:.2%} between runs, {parts.observation:.2%} within a run)"
    few = len(fit.observations.runs) < len(fit.observations)
    return f"{total}{' (too few runs to tell noise between runs from noise within)' if few else ' between runs'}"


def _spread(fit: Fit) -> str:
    spread = fit.spread
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
    if fit.resamples is None or fit.scheme is None:
        return "standard errors over runs, from the Jacobian; resampling gives intervals"
    return f"{LEVEL:.0%}, {len(fit.resamples)} {SCHEMES[fit.scheme]}"


def _coefficients(fit: Fit) -> list[str]:
    resampled = fit.resamples is not None
    spans = _resampled_spans(fit) if resampled else _error_spans(fit)
    heading = f"{LEVEL:.0%} interval" if resampled else "standard error"
    lines = [f"{'coefficient':<12}{'estimate':>12}  {heading:<24}meaning (N and D in billions)"]
    for term in fit.law.terms:
        span = "fixed" if term.name in fit.fixed else spans[term.name]
        span = f"tied to {fit.tie[term.name]}" if term.name in fit.tie else span
        lines.append(f"{term.name:<12}{fit.coefficients[term.name]:>12.5g}  {span:<24}{term.meaning}")
    return lines


def _resampled_spans(fit: Fit) -> dict[str, str]:
    return {name: f"{low:.4g} to {high:.4g}" for name, (low, high) in coefficient_intervals(fit, LEVEL).items()}


def _error_spans(fit: Fit) -> dict[str, str]:
    """Return standard errors in the unit of each coefficient, also where it was searched on a log scale."""
    problem, errors = fit.problem, fit_covariance(fit).errors
    spans = dict.fromkeys(fit.law.names, "on a bound")
    for name, logarithmic in zip(problem.free_names, problem.logarithmic, strict=True):
        if name in errors:
            value = errors[name] * (fit.coefficients[name] if logarithmic else 1.0)
            spans[name] = f"± {value:.3g}"
    return spans


def _span(span: tuple[float | None, float | None], unit: float = 1.0) -> str:
    low, high = (f"{end or 0.0:g}" if unit == 1 else f"{(end or 0.0) / unit:.3g}B" for end in span)
    return low if low == high else f"{low} to {high}"


def estimates(fit: Fit) -> Table:
    """Return the coefficients alone, for a fit without resamples."""
    return Table({"coefficient": list(fit.coefficients), "estimate": list(fit.coefficients.values())})
