"""Does the gain from looping saturate? The general mapping on every sweep, and the mappings on held-out passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.fitting import Fit, fit, likelihood_profile, load_public
from loopscale.fitting.compare import CROSS_VALIDATION, compare
from loopscale.scaling import Points, exponent
from sweeps import Sweep

LEVEL = 0.9
MAPPINGS = ("linear", "power", "bounded", "general")
TESTS = (("qlabs-loops", "R=6"), ("qlabs-loops", "R>=4"), ("qlabs-loops", "N>300M"), ("isodepth", "R=8"))
TAILS = np.linspace(0.0, 1.0, 201)


def held_out() -> list[dict[str, Any]]:
    """Return the held-out RMSE of each mapping; the general one with and without its prior."""
    records = []
    for name in dict.fromkeys(sweep for sweep, _ in TESTS):
        slices = [part for sweep, part in TESTS if sweep == name]
        data = load_public(name)
        plain = compare(data, slices, outer="chinchilla", mappings=MAPPINGS)
        free = compare(data, slices, outer="chinchilla", mappings=("general",), recipe="no-prior")
        for part in (*slices, CROSS_VALIDATION):
            scores = {mapping: plain.score(part, mapping) for mapping in MAPPINGS}
            records.append(
                {"sweep": name, "held out": part, "rows": scores["bounded"].rows}
                | {mapping: score.rmse for mapping, score in scores.items()}
                | {"general, no prior": free.score(part, "general").rmse}
            )
    return records


def exponents(sweeps: list[Sweep]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the exponent lambda of each sweep with its profile interval, and of those that are pooled."""
    records, pooled = [], np.zeros(len(TAILS))
    for sweep in sweeps:
        fitted = sweep.fitted(sweep.general, resamples=100)
        profile = likelihood_profile(fitted, "tail", level=LEVEL)
        drawn = np.asarray(fitted.law.resamples)[:, fitted.law.names.index("tail")]
        c = fitted.law.coefficients
        records.append(
            {
                "sweep": sweep.label, "runs": len(fitted.observations), "R": _span(fitted), "tail": c["tail"],
                "low": profile.low, "high": profile.high, "open": list(profile.open), "kappa1": c["kappa1"],
                "kappa2": c["kappa2"], "saturating": float(np.mean(drawn < 0.5)), "rmse": fitted.law.rmse,
            }
        )  # fmt: skip
        if sweep.pooled:
            pooled += np.interp(TAILS, *_sorted(profile.values, profile.statistic))
    pooled -= pooled.min()
    inside = TAILS[pooled <= _limit()]
    return records, {"low": float(inside.min()), "high": float(inside.max()), "tail": float(TAILS[pooled.argmin()])}


def sensitivity(sweeps: list[Sweep]) -> list[dict[str, Any]]:
    """Return the interval of the exponent under other assumptions: least squares, another law, fewer passes."""
    records = []
    for sweep in sweeps:
        data = sweep.observations
        R = data.points.recurrence
        cases = {
            "as above": (data, sweep.outer, 1e-3),
            "least squares": (data, sweep.outer, 1.0),
            "N-D interaction": (data, "interaction", 1e-3),
            "without the largest R": (data.where(R.max() > R), sweep.outer, 1e-3),
        }
        for case, (rows, outer, delta) in cases.items():
            fitted = fit(rows, outer=outer, mapping="general", recipe="no-prior", resamples=0, delta=delta)
            profile = likelihood_profile(fitted, "tail", level=LEVEL)
            records.append(
                {"sweep": sweep.label, "case": case, "low": profile.low, "high": profile.high, "rmse": fitted.law.rmse}
            )
    return records


def _limit() -> float:
    """Return the rise of twice the log likelihood that an interval of one coefficient allows."""
    from scipy.stats import chi2

    return float(chi2.ppf(LEVEL, 1))


def _sorted(values: FloatArray, statistic: FloatArray) -> tuple[FloatArray, FloatArray]:
    order = np.argsort(values)
    return values[order], statistic[order]


def _span(fitted: Fit) -> str:
    passes = np.unique(fitted.observations.points.recurrence)
    return f"{passes[0]:g} to {passes[-1]:g}"


def lambda_text(tail: float) -> str:
    """Write lambda = 2 - 1/tail."""
    value = float(exponent(tail))
    return "−∞" if value < -50 else f"{value:.2f}".replace("-", "−")


def deciding(sweep: Sweep, most: int = 32) -> list[dict[str, Any]]:
    """Return how far apart the exponential bound and the logarithm are at more passes, both fitted to the sweep.

    The difference is in the loss of the sweep's largest model on its largest number of tokens.
    """
    laws = [
        fit(
            sweep.observations, outer=sweep.outer, mapping="general", fixed={**sweep.fixed, "tail": tail}, resamples=0,
            recipe="no-prior",
        ).law
        for tail in (0.0, 0.5)
    ]  # fmt: skip
    points = sweep.observations.points
    largest = int(np.argmax(points.active))
    assert points.loop is not None
    records = []
    for passes in (4, 6, 8, 12, 16, 24, most):
        at = Points(points.active[largest], points.tokens.max(), passes, loop=points.loop[largest])
        bounded, logarithm = (float(law(at)) for law in laws)
        records.append({"R": passes, "difference": bounded - logarithm})
    return records


def measured_gain(fitted: Fit) -> list[dict[str, float]]:
    """Return the mean gain at each R that the runs themselves show, given the rest of the law, with its error.

    Each loss is inverted for N_eff with the fitted size and data terms.
    """
    law, data = fitted.law, fitted.observations
    c, p = law.coefficients, data.points
    assert p.loop is not None
    rest = law.outer.loss_at(c, np.full(len(data), 1e30), _inputs(law, p))  # all but the size term, which vanishes
    N = (np.maximum(data.loss - rest, 1e-6) / c["A"]) ** (1 / c["alpha"])
    gain = (N * 1e9 - p.active) / p.loop
    records = []
    for passes in np.unique(p.recurrence[p.recurrence > 1]):
        values = gain[p.recurrence == passes]
        middle = float(np.median(values))
        spread = 1.4826 * float(np.median(np.abs(values - middle)))
        records.append({"R": float(passes), "gain": middle, "error": 1.64 * spread / len(values) ** 0.5})
    return records


def _inputs(law: Any, points: Points) -> Any:
    from loopscale.scaling import inputs

    return inputs(law.form, points, law.units)
