"""A recurrence mapping that contains the others: one coefficient says whether the gain saturates, and how.

The value of one more pass falls as g'(R) = (kappa1 / kappa2) (1 + p (R - 1) / kappa2)^(-1/p), p = tail / (1 - tail).
Integrated, with lambda = 2 - 1/tail and k = kappa2 / p, this is the Box-Cox form

    g(R) = (kappa1 / kappa2) k ((1 + (R - 1) / k)^lambda - 1) / lambda.

tail = 0 is the paper's exponential bound (lambda = -infinity), 1/3 a hyperbola (-1), 1/2 a logarithm (0), 1 linear (1):
the gain has a bound where tail < 1/2. In these coordinates every limit is an ordinary point of the range, and a search
never has to reach infinity.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from loopscale.core.arrays import Values
from loopscale.scaling.coefficients import Coefficient, Prior, Term
from loopscale.scaling.mappings import KAPPA1, KAPPA2, THETA, RecurrenceMapping

CURVE = replace(KAPPA2, prior=Prior(1.2, 0.47, "the mean over the paper, Q Labs and our micro-sweep"))
"""kappa2, with the mean and spread of its logarithm over other sweeps (experiments/evidence/prior.py). Iso-Depth is not
among them, so that its held-out passes test the prior."""
TAIL = Coefficient(
    "tail",
    0.0,
    1.0,
    "how slowly the value of a pass falls: 0 exponential, 1/2 logarithmic gain, 1 linear",
    Term.RECURRENCE,
    typical=0.25,
    neutral=0.0,
    prior=Prior(0.0, 0.17, "the exponential bound, within what those sweeps allow"),
)


def exponent(tail: Any) -> Any:
    """Return lambda, the exponent of the gain: below zero it has a bound, -infinity is the exponential bound."""
    with np.errstate(divide="ignore", over="ignore"):
        return 2.0 - 1.0 / np.asarray(tail, dtype=np.float64)


class GeneralRecurrence(RecurrenceMapping):
    """The gain of one more pass falls exponentially, as a power, or not at all: ``tail`` decides."""

    name = "general"
    title = "general recurrence"
    coefficients = (KAPPA1, CURVE, TAIL)

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        curve, _, _ = _curve((R - 1.0) / c["kappa2"], c["tail"])
        return c["kappa1"] * curve + np.zeros(np.shape(m))

    def gain_and_gradient(self, c: Values, R: Any, m: Any) -> tuple[Any, dict[str, Any]]:
        x = (R - 1.0) / c["kappa2"] + np.zeros(np.shape(m))
        curve, slope, by_tail = _curve(x, c["tail"])
        by = {"kappa1": curve, "kappa2": -c["kappa1"] * slope * x / c["kappa2"], "tail": c["kappa1"] * by_tail}
        return c["kappa1"] * curve, by

    def asymptote(self, c: Values, m: Any) -> Any:
        return _asymptote(c["kappa1"], c["tail"]) + np.zeros(np.shape(m))


class GeneralConditional(RecurrenceMapping):
    """The general mapping with kappa_j(m) = kappa_j m^-theta, as the paper's sparsity-conditional one has."""

    name = "general-conditional"
    title = "general sparsity-conditional recurrence"
    coefficients = (KAPPA1, CURVE, THETA, TAIL)
    needs_ratio = True

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        stretch = np.exp(-c["theta"] * np.log(m))
        curve, _, _ = _curve((R - 1.0) / (c["kappa2"] * stretch), c["tail"])
        return c["kappa1"] * stretch * curve

    def gain_and_gradient(self, c: Values, R: Any, m: Any) -> tuple[Any, dict[str, Any]]:
        log_m = np.log(m)
        stretch = np.exp(-c["theta"] * log_m)
        x, height = (R - 1.0) / (c["kappa2"] * stretch), c["kappa1"] * stretch
        curve, slope, by_tail = _curve(x, c["tail"])
        gain, by_log_kappa2 = height * curve, -height * slope * x
        by = {
            "kappa1": gain / c["kappa1"],
            "kappa2": by_log_kappa2 / c["kappa2"],
            "theta": -(gain + by_log_kappa2) * log_m,
            "tail": height * by_tail,
        }
        return gain, by

    def asymptote(self, c: Values, m: Any) -> Any:
        return _asymptote(c["kappa1"] * np.exp(-c["theta"] * np.log(m)), c["tail"])

    def dense(self, c: Values) -> tuple[RecurrenceMapping, dict[str, Any]]:
        return GeneralRecurrence(), {name: c[name] for name in ("kappa1", "kappa2", "tail")}


def _curve(x: Any, tail: Any) -> tuple[Any, Any, Any]:
    """Return F(x) = ∫ (1 + p u)^(-1/p) du from 0 to x, its derivative by x, and its derivative by tail.

    With w = ln(1 + p x) / p, the integrand at x is exp(-w) and F = (exp((p - 1) w) - 1) / (p - 1): neither divides by
    zero at p = 0 or p = 1 when written with the two ratios below.
    """
    rest = np.maximum(1.0 - tail, _LEAST) if not np.iscomplexobj(tail) else 1.0 - tail
    p = tail / rest
    log_ratio, by_log_ratio = _log_ratio(p * x)
    w, w_by_p = x * log_ratio, x * x * by_log_ratio
    ratio, by_ratio = _exp_ratio((p - 1.0) * w)
    by_p = ratio * w_by_p + w * by_ratio * (w + (p - 1.0) * w_by_p)
    return w * ratio, np.exp(-w), by_p / (rest * rest)


_LEAST = 1e-12
"""Distance of tail from 1 below which the curve counts as linear: the difference is under 1e-10 of it."""
_SMALL = 1e-2
"""Arguments below which a ratio is its series, whose terms left out are under 1e-16."""
_LOG_SERIES = np.array([(-1.0) ** k / (k + 1) for k in range(9)])
_EXP_SERIES = 1.0 / np.cumprod(np.arange(1.0, 10.0))


def _log_ratio(y: Any) -> tuple[Any, Any]:
    """Return ln(1 + y) / y and its derivative."""
    small = np.abs(y) < _SMALL
    far = np.where(small, 1.0, y)
    value = np.log1p(far) / far
    return _joined(small, y, value, (1.0 / (1.0 + far) - value) / far, _LOG_SERIES)


def _exp_ratio(z: Any) -> tuple[Any, Any]:
    """Return (exp(z) - 1) / z and its derivative."""
    small = np.abs(z) < _SMALL
    far = np.where(small, 1.0, z)
    value = np.expm1(far) / far
    return _joined(small, z, value, (np.exp(far) - value) / far, _EXP_SERIES)


def _joined(small: Any, y: Any, value: Any, slope: Any, series: Any) -> tuple[Any, Any]:
    """Take the series and its derivative where the argument is small."""
    if not small.any():
        return value, slope
    near = np.where(small, y, 0.0)
    slopes = series[1:] * np.arange(1, len(series))
    return (
        np.where(small, np.polynomial.polynomial.polyval(near, series), value),
        np.where(small, np.polynomial.polynomial.polyval(near, slopes), slope),
    )


def _asymptote(height: Any, tail: Any) -> Any:
    """Return ∫ (1 + p u)^(-1/p) du from 0 to infinity times the height: finite where tail < 1/2."""
    with np.errstate(divide="ignore", over="ignore"):
        bounded = np.asarray(tail) < 0.5
        return np.where(bounded, height * (1.0 - tail) / np.where(bounded, 1.0 - 2.0 * np.asarray(tail), 1.0), np.inf)
