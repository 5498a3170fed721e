"""The text of a fit: the law and how far to trust it on one screen, and everything else on request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from loopscale.core.quantities import counted, format_span, format_value
from loopscale.core.tables import Table
from loopscale.core.text import WIDTH, fact, side_by_side, text_table, warning
from loopscale.fitting.covariance import coefficient_intervals, fit_covariance
from loopscale.fitting.resample import Scheme
from loopscale.fitting.search import Recipe
from loopscale.fitting.sensitivity import sensitivity_lines
from loopscale.fitting.warnings import warnings_of

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
WARNINGS = 2
"""Warnings on the first screen."""
LINES = 19
"""Lines of the first screen, the files and the next command aside."""
ASIDE = ("run", "finished", "k", "step", "FLOPs")
"""Columns that the first screen leaves out: they change no size, no loss and no count of tokens."""


def summary(fit: Fit, verbose: bool = False) -> str:
    """Return the fit as plain text: one screen, or everything."""
    if verbose:
        tables = ["", *_coefficient_table(fit), *_ladder_table(fit), "", *sensitivity_lines(fit)]
        return "\n".join([_answer(fit), "", *_details(fit), *tables, *warning_lines(fit)])
    head = [_answer(fit), "", *_facts(fit), ""]
    coefficients = list(side_by_side([(name, *texts) for name, texts in _estimates(fit).items()]))
    warnings = warning_lines(fit, WARNINGS)
    if len(head) + len(coefficients) + len(warnings) > LINES:
        warnings = warning_lines(fit, 1)
    if len(head) + 2 + len(warnings) > LINES:
        head = [_answer(fit), "", *_facts(fit, chosen=False), ""]
    room = max(LINES - len(head) - len(warnings), 2)
    if len(coefficients) > room:
        coefficients = [*coefficients[: room - 1], f"  all {len(fit.law.terms)} coefficients: --verbose"]
    return "\n".join([*head, *coefficients, *warnings])


def warning_lines(fit: Fit, most: int | None = None) -> list[str]:
    """Return the warnings with their help, at most so many of them, after a blank line."""
    warnings = warnings_of(fit)
    first = warnings if most is None else warnings[:most]
    lines = [line for problem, remedy in first for line in warning(problem, remedy)]
    if len(first) < len(warnings):
        lines.append(f"{counted(len(warnings) - len(first), 'more warning')}: --verbose")
    return ["", *lines] if lines else []


def _answer(fit: Fit) -> str:
    data = fit.observations
    losses, runs = counted(len(data), "run"), counted(len(data.runs), "run")
    rows = losses if len(data.runs) == len(data) else f"{len(data):,} losses of {runs}"
    source = Path(data.source).name if data.columns_used else data.name
    aside = f" ({', '.join(data.skipped)})" if data.skipped else ""
    answer = f"Fitted {rows} from {source}{aside}" + ("  [DEGENERATE]" if fit.degenerate else "")
    return "\n".join(wrap(answer, WIDTH, subsequent_indent="  ", break_on_hyphens=False))


def _facts(fit: Fit, chosen: bool = True) -> list[str]:
    """Return the labelled facts; ``chosen`` says by how much the form won, if others were tried."""
    data, law, span = fit.observations, fit.law, fit.law.fitted_range
    covers = [f"N {format_span(*span.size)}", f"D {format_span(*span.tokens)}"]
    covers += [f"{symbol} {low:g}–{high:g}" for symbol, (low, high) in (("E", span.experts), ("R", span.recurrence))
               if low is not None and high is not None and low != high]  # fmt: skip
    error = f"{_error(law.rmse or 0.0)} {data.loss_unit} RMSE, R² {fit.r_squared:.4f}, noise floor {fit.run_noise:.2%}"
    lines = [*fact("law", str(law.form)), *fact("", f"{_equation(fit)}   (N, D in billions)")]
    for label, text in _prior(fit).items():
        lines += fact(label, text)
    if fit.ladder and chosen:
        lines += fact("chosen", _ladder(fit))
    lines += fact("error", error)
    if fit.spread is not None:
        tests = counted(fit.spread.backtests, "backtest")
        lines += fact("10x out", f"±{fit.spread.growth:.1%} expected ({tests} and a prior from public sweeps)")
    lines += fact("covers", f"{' · '.join(covers)}; {_counting(fit)}")
    only = [f"{symbol} = {low:g}" for symbol, (low, high) in (("E", span.experts), ("R", span.recurrence))
            if low is not None and low == high and low != 1]  # fmt: skip
    if only:
        lines += fact("only", f"every run has {' and '.join(only)}; the law has no term for that and plans at it")
    if data.reading.balance:
        lines += fact("weights", "each compute budget counts alike (--balance)")
    if data.columns_used:
        each = "; every row counts as a run" if not data.named_runs and len(data.runs) == len(data) else ""
        used = [f"{symbol} = {name}" for symbol, name in data.columns_used.items() if symbol not in ASIDE]
        lines += fact("columns", f"{', '.join(used)}{each}")
    return lines


def _ladder(fit: Fit) -> str:
    """Say by how much the form won on held-out runs."""
    chosen = next(score for score in fit.ladder if score.chosen)
    others = sorted((score for score in fit.ladder if not score.chosen), key=lambda score: score.error)
    text = f"held-out error {chosen.error:.2%}, AICc {_whole(chosen.aicc)}"
    if others:
        best = others[0]
        why = "" if best.error >= chosen.error else " (a tie)" if best.eligible else " (shown only)"
        text += f"; {best.form} {best.error:.2%}, {_whole(best.aicc)}{why}"
    return text


def _whole(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}"


def _ladder_table(fit: Fit) -> list[str]:
    """Return the forms that were tried, from the lowest error up."""
    if not fit.ladder:
        return []
    columns = ("form tried", "coefficients", "held-out error", "AICc", "")
    rows = [
        (score.form, str(score.coefficients), f"{score.error:.2%}", _whole(score.aicc),
         "chosen" if score.chosen else "" if score.eligible else "shown only: it forecasts no better")
        for score in sorted(fit.ladder, key=lambda score: score.error)
    ]  # fmt: skip
    return ["", *text_table(columns, rows, left=("form tried", "")).splitlines()]


def _counting(fit: Fit) -> str:
    data = fit.observations
    return ("assumed " if data.counts_assumed else "") + data.counts.value.replace("-", " ")


def _error(value: float) -> str:
    """Write an error with two digits."""
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def _equation(fit: Fit) -> str:
    """Return the law with as many digits as the data determine, N and D in billions."""
    rounded = {name: float(value) for name, (value, _) in _estimates(fit, signed=True).items()}
    text = fit.outer.equation(rounded)
    return f"{text}, N = N_act + g(R) N_loop" if fit.mapping.loops else text


def _estimates(fit: Fit, signed: bool = False) -> dict[str, tuple[str, str]]:
    """Return each coefficient's value and interval as text, with the digits that the interval deserves.

    Exponents are positive, as papers print them, unless ``signed``.
    """
    spans = _spans(fit)
    texts = {}
    for term in fit.law.terms:
        sign, value = 1 if signed else term.published_sign, fit.coefficients[term.name]
        if term.name in fit.tie or term.name in fit.fixed:
            texts[term.name] = f"{sign * value:.5g}", f"= {fit.tie[term.name]}" if term.name in fit.tie else "fixed"
            continue
        span = spans.get(term.name)
        if span is None:
            texts[term.name] = f"{sign * value:.4g}", "on a bound"
            continue
        low, high = sorted(sign * end for end in span)
        half = (high - low) / 2
        ends = ", ".join(format_value(end, half) for end in (low, high))
        around = f"± {_error(half)}" if fit.resamples is None else f"[{ends}]"
        texts[term.name] = format_value(sign * value, half), around
    return texts


def _spans(fit: Fit) -> Mapping[str, tuple[float, float]]:
    """Return intervals over the resampled laws, or one standard error to either side where there are none."""
    if fit.resamples is not None:
        return coefficient_intervals(fit, LEVEL)
    problem, errors, spans = fit.problem, fit_covariance(fit).errors, {}
    for name, logarithmic in zip(problem.free_names, problem.logarithmic, strict=True):
        if name in errors:
            value = fit.coefficients[name]
            error = errors[name] * (value if logarithmic else 1.0)
            spans[name] = value - error, value + error
    return spans


def _details(fit: Fit) -> list[str]:
    data, span = fit.observations, fit.law.fitted_range
    rows = {
        "law": str(fit.law.form),
        "equation": f"{_equation(fit)}; N, D in billions",
        "raw": f"{fit.law.equation()} (N, D as counts)",
        "data": f"{len(data):,} losses of {len(data.runs):,} runs; {data.source}",
        "range": f"N {format_span(*span.size)} ({_counting(fit)}), D {format_span(*span.tokens)}, "
        f"E {format_span(*span.experts)}, R {format_span(*span.recurrence)}",
        "columns": ", ".join(f"{symbol} = {name}" for symbol, name in data.columns_used.items()),
        "objective": f"{fit.objective:.6g} = sum of Huber({fit.delta:.4g}) on ln loss; {len(fit.free)} coefficients",
        "procedure": _procedure(fit),
        **_prior(fit),
        "quality": f"RMSE {fit.law.rmse:.4f} {data.loss_unit}, R² {fit.r_squared:.5f}; {_noise(fit)}",
        "10x out": _spread(fit),
        "intervals": _intervals(fit),
    }
    notes = [line for note in data.notes for line in fact("note", note)]
    return [line for name, text in rows.items() if text for line in fact(name, text)] + notes


def _prior(fit: Fit) -> dict[str, str]:
    """Say which coefficients were pulled where, and how to fit without."""
    priors = [(name, term.prior) for name, term in fit.problem.terms.items() if fit.prior and term.prior is not None]
    if not priors:
        return {}
    pulled = ", ".join(f"{name} towards {prior.centre:g} ({prior.source})" for name, prior in priors)
    return {"prior": f"{pulled}; recipe no-prior fits without"}


def _noise(fit: Fit) -> str:
    """Return the noise floor: of a new run, and its parts between runs and within them."""
    total = f"noise floor {fit.run_noise:.2%} of the loss"
    if (parts := fit.noise_components) is not None:
        return f"{total} ({parts.run:.2%} between runs, {parts.observation:.2%} within a run)"
    few = len(fit.observations.runs) < len(fit.observations)
    return f"{total}{' (too few runs to separate noise between runs from noise within)' if few else ' between runs'}"


def _spread(fit: Fit) -> str:
    spread = fit.spread
    if spread is None:
        return "not estimated; resampling gives predictive intervals"
    return (
        f"±{spread.growth:.1%} expected one decade of compute beyond the data "
        f"({counted(spread.backtests, 'backtest')} and a prior from public sweeps)"
    )


def _procedure(fit: Fit) -> str:
    if fit.recipe is Recipe.PAPER:
        return "the paper's: curve_fit, then L-BFGS-B with finite differences, R = 1 first; one start"
    return f"exact gradients within bounds; {fit.agreeing} of {fit.starts} starts agree"


def _intervals(fit: Fit) -> str:
    if fit.resamples is None or fit.scheme is None:
        return "standard errors over runs, from the Jacobian; resampling gives intervals"
    return f"{LEVEL:.0%}, {len(fit.resamples)} {SCHEMES[fit.scheme]}"


def _coefficient_table(fit: Fit) -> list[str]:
    heading = "standard error" if fit.resamples is None else f"{LEVEL:.0%} interval"
    texts = _estimates(fit)
    lines = [f"{'coefficient':<12}{'estimate':>10}  {heading:<18}meaning (N and D in billions)"]
    for term in fit.law.terms:
        value, around = texts[term.name]
        lines += wrap(f"{term.name:<12}{value:>10}  {around:<18}{term.meaning}", WIDTH + 20, subsequent_indent=" " * 42)
    return lines


def estimates(fit: Fit) -> Table:
    """Return the coefficients alone, for a fit without resamples."""
    return Table({"coefficient": list(fit.coefficients), "estimate": list(fit.coefficients.values())})
