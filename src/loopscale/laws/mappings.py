"""Recurrence mappings: how many effective parameters R passes through the loop are worth.

Each mapping is written once, as the gain ``g_eff(R, m) = (N_eff - N_act) / N_loop``; everything else
(effective parameters, the multiplier rho, limits) follows from it. ``m = N_act / N_total``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from loopscale.arrays import Values
from loopscale.errors import InputError, nearest, shown
from loopscale.laws.coefficients import Coefficient

PHI = Coefficient("phi", 0.0, 2.0, "exponent of the power-law gain")
KAPPA1 = Coefficient("kappa1", 1e-3, 50.0, "largest gain of a dense loop, in loop blocks")
KAPPA2 = Coefficient("kappa2", 1e-2, 100.0, "passes over which a dense loop's gain saturates")
THETA = Coefficient("theta", 0.0, 2.0, "how strongly sparsity raises and stretches the gain")
THETA1 = Coefficient("theta1", 0.0, 2.0, "how strongly sparsity raises the largest gain")
THETA2 = Coefficient("theta2", 0.0, 2.0, "how strongly sparsity stretches the saturation")


@dataclass(frozen=True)
class RecurrenceMapping(ABC):
    """The gain from R passes. Values are numpy arrays or numbers, and broadcast; coefficients come by name."""

    name: ClassVar[str]
    coefficients: ClassVar[tuple[Coefficient, ...]] = ()
    needs_ratio: ClassVar[bool] = False

    @abstractmethod
    def gain(self, c: Values, R: Any, m: Any) -> Any:
        """Return the effective-parameter gain in units of the loop block; zero at R = 1."""

    @abstractmethod
    def gain_gradient(self, c: Values, R: Any, m: Any) -> dict[str, Any]:
        """Return the derivative of the gain with respect to each coefficient, by name."""

    @abstractmethod
    def asymptote(self, c: Values, m: Any) -> Any:
        """Return the gain's limit for R → ∞ at a fixed ratio m."""

    def sparse_limit(self, c: Values, R: Any) -> Any:
        """Return the gain's limit for m → 0 at a fixed R."""
        return self.gain(c, R, 1.0)

    def dense(self, c: Values) -> tuple[RecurrenceMapping, dict[str, Any]]:
        """Return the mapping at m = 1 with its coefficients."""
        return self, {each.name: c[each.name] for each in self.coefficients}


class NoGain(RecurrenceMapping):
    """Looping is worth nothing: N_eff = N_act. For laws that know no recurrence."""

    name = "none"

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        return np.zeros(np.broadcast(R, m).shape)

    def gain_gradient(self, c: Values, R: Any, m: Any) -> dict[str, Any]:
        return {}

    def asymptote(self, c: Values, m: Any) -> Any:
        return np.zeros(np.shape(m))


class Linear(RecurrenceMapping):
    """Each pass is worth the whole loop block: N_eff = N_unroll (eq. recurrence-mappings, left)."""

    name = "linear"

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        return np.asarray(R) - 1.0 + np.zeros(np.shape(m))

    def gain_gradient(self, c: Values, R: Any, m: Any) -> dict[str, Any]:
        return {}

    def asymptote(self, c: Values, m: Any) -> Any:
        return np.full(np.shape(m), np.inf)


class PowerLaw(RecurrenceMapping):
    """R passes are worth R^phi loop blocks (eq. recurrence-mappings, right)."""

    name = "power"
    coefficients = (PHI,)

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        return np.expm1(c["phi"] * np.log(R)) + np.zeros(np.shape(m))

    def gain_gradient(self, c: Values, R: Any, m: Any) -> dict[str, Any]:
        log_R = np.log(R) + np.zeros(np.shape(m))
        return {"phi": np.exp(c["phi"] * log_R) * log_R}

    def asymptote(self, c: Values, m: Any) -> Any:
        """Grow without bound for phi > 0; lose the whole block for phi < 0."""
        phi = np.asarray(c["phi"]) + np.zeros(np.shape(m))
        return np.where(phi > 0, np.inf, np.where(phi < 0, -1.0, 0.0))


class Bounded(RecurrenceMapping):
    """The gain saturates at kappa1 over about kappa2 passes (eq. bounded-dense)."""

    name = "bounded"
    coefficients = (KAPPA1, KAPPA2)

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        return -c["kappa1"] * np.expm1(-(R - 1.0) / c["kappa2"]) + np.zeros(np.shape(m))

    def gain_gradient(self, c: Values, R: Any, m: Any) -> dict[str, Any]:
        x = (R - 1.0) / c["kappa2"] + np.zeros(np.shape(m))
        return {"kappa1": -np.expm1(-x), "kappa2": -c["kappa1"] * np.exp(-x) * x / c["kappa2"]}

    def asymptote(self, c: Values, m: Any) -> Any:
        return c["kappa1"] + np.zeros(np.shape(m))


class TwoExponents(RecurrenceMapping):
    """Bounded, with kappa1 m^-theta1 and kappa2 m^-theta2: the appendix's ablation."""

    name = "two-exponents"
    coefficients = (KAPPA1, KAPPA2, THETA1, THETA2)
    needs_ratio = True

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        return _conditional_gain(c["kappa1"], c["kappa2"], c["theta1"], c["theta2"], R, m)

    def gain_gradient(self, c: Values, R: Any, m: Any) -> dict[str, Any]:
        d1, d2 = _conditional_slopes(c["kappa1"], c["kappa2"], c["theta1"], c["theta2"], R, m)
        log_m = np.log(m)
        return {
            "kappa1": d1 / c["kappa1"],
            "kappa2": d2 / c["kappa2"],
            "theta1": -d1 * log_m,
            "theta2": -d2 * log_m,
        }

    def asymptote(self, c: Values, m: Any) -> Any:
        return c["kappa1"] * np.exp(-c["theta1"] * np.log(m))

    def sparse_limit(self, c: Values, R: Any) -> Any:
        return _sparse_limit(c["kappa1"], c["kappa2"], c["theta1"], c["theta2"], R)

    def dense(self, c: Values) -> tuple[RecurrenceMapping, dict[str, Any]]:
        return Bounded(), {"kappa1": c["kappa1"], "kappa2": c["kappa2"]}


class SparsityConditional(RecurrenceMapping):
    """Bounded, with kappa_j(m) = kappa_j m^-theta: sparsity raises the bound and delays it (eq. bounded-moe)."""

    name = "sparsity-conditional"
    coefficients = (KAPPA1, KAPPA2, THETA)
    needs_ratio = True

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        return _conditional_gain(c["kappa1"], c["kappa2"], c["theta"], c["theta"], R, m)

    def gain_gradient(self, c: Values, R: Any, m: Any) -> dict[str, Any]:
        d1, d2 = _conditional_slopes(c["kappa1"], c["kappa2"], c["theta"], c["theta"], R, m)
        return {"kappa1": d1 / c["kappa1"], "kappa2": d2 / c["kappa2"], "theta": -(d1 + d2) * np.log(m)}

    def asymptote(self, c: Values, m: Any) -> Any:
        return c["kappa1"] * np.exp(-c["theta"] * np.log(m))

    def sparse_limit(self, c: Values, R: Any) -> Any:
        return _sparse_limit(c["kappa1"], c["kappa2"], c["theta"], c["theta"], R)

    def dense(self, c: Values) -> tuple[RecurrenceMapping, dict[str, Any]]:
        return Bounded(), {"kappa1": c["kappa1"], "kappa2": c["kappa2"]}


def _height_and_stretch(k1: Any, k2: Any, t1: Any, t2: Any, R: Any, m: Any) -> tuple[Any, Any]:
    """Return kappa1(m) and (R - 1) / kappa2(m)."""
    log_m = np.log(m)
    return k1 * np.exp(-t1 * log_m), (R - 1.0) / (k2 * np.exp(-t2 * log_m))


def _conditional_gain(k1: Any, k2: Any, t1: Any, t2: Any, R: Any, m: Any) -> Any:
    height, x = _height_and_stretch(k1, k2, t1, t2, R, m)
    return -height * np.expm1(-x)


def _conditional_slopes(k1: Any, k2: Any, t1: Any, t2: Any, R: Any, m: Any) -> tuple[Any, Any]:
    """Return the conditional gain's derivatives by ln kappa1(m), which is the gain itself, and by ln kappa2(m)."""
    height, x = _height_and_stretch(k1, k2, t1, t2, R, m)
    return -height * np.expm1(-x), -height * np.exp(-x) * x


def _sparse_limit(k1: Any, k2: Any, t1: Any, t2: Any, R: Any) -> Any:
    """Take m → 0: height times saturation goes as m^(t2 - t1) where the stretch t2 is above zero.

    With equal exponents above zero that is the linear law (kappa1 / kappa2)(R - 1).
    """
    k1, k2, t1, t2, R = np.broadcast_arrays(k1, k2, t1, t2, np.asarray(R, float))
    passes = R - 1.0
    # What multiplies m^power as m → 0: the saturation is linear in R, still curved, or already complete.
    factor = np.where(t2 > 0, k1 / k2 * passes, np.where(t2 < 0, k1, -k1 * np.expm1(-passes / k2)))
    power = np.where(t2 > 0, t2 - t1, -t1)
    limit = np.where(power == 0, factor, np.where(power < 0, np.inf, 0.0))
    return np.where(passes == 0, 0.0, limit)


MAPPINGS: dict[str, RecurrenceMapping] = {
    each.name: each for each in (NoGain(), Linear(), PowerLaw(), Bounded(), SparsityConditional(), TwoExponents())
}


def mapping(name: str) -> RecurrenceMapping:
    """Return the recurrence mapping called ``name``."""
    if name not in MAPPINGS:
        raise InputError(
            f"recurrence mapping {shown(name)} is not known{nearest(name, MAPPINGS)}; choose from {', '.join(MAPPINGS)}"
        )
    return MAPPINGS[name]
