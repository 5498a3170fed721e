"""Recurrence mappings: how many loop blocks R passes are worth.

A new mapping is one class here, and its test.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from loopscale.core.arrays import Values, in_place
from loopscale.core.errors import InputError, nearest, shown
from loopscale.scaling.coefficients import Coefficient, Role, Term

PHI = Coefficient("phi", 0.0, 2.0, "exponent of the power-law gain", Term.RECURRENCE, Role.EXPONENT, 0.5, neutral=0.0)
KAPPA1 = Coefficient(
    "kappa1",
    1e-3,
    50.0,
    "largest gain from looping a dense block, in units of that block",
    Term.RECURRENCE,
    typical=0.5,
    positive=True,
)
KAPPA2 = Coefficient(
    "kappa2",
    1e-2,
    100.0,
    "passes over which a dense loop's gain saturates",
    Term.RECURRENCE,
    typical=2.0,
    positive=True,
)
THETA = Coefficient(
    "theta",
    0.0,
    2.0,
    "effect of sparsity on the size and saturation of the gain",
    Term.RECURRENCE,
    typical=0.3,
    neutral=0.0,
)
THETA1 = Coefficient(
    "theta1", 0.0, 2.0, "effect of sparsity on the largest gain", Term.RECURRENCE, typical=0.3, neutral=0.0
)
THETA2 = Coefficient(
    "theta2", 0.0, 2.0, "effect of sparsity on the saturation", Term.RECURRENCE, typical=0.3, neutral=0.0
)

MAPPINGS: dict[str, RecurrenceMapping] = {}
"""Every recurrence mapping by name, in the order of their classes."""


@dataclass(frozen=True)
class RecurrenceMapping(ABC):
    """The gain from R passes. Values are numbers or arrays that broadcast; coefficients are given by name.

    A subclass that states its ``name`` joins ``MAPPINGS``: fits, plans, files and commands then know it.
    """

    name: ClassVar[str]
    """What files and commands call it."""
    title: ClassVar[str]
    """What texts call it."""
    coefficients: ClassVar[tuple[Coefficient, ...]] = ()
    loops: ClassVar[bool] = True
    """Whether recurrence changes the loss at all."""
    formula: ClassVar[str] = ""
    """The gain g(R) in LaTeX."""
    needs_ratio: ClassVar[bool] = False
    """Whether the gain depends on m = N_act / N_total."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            MAPPINGS[cls.name] = cls()

    @abstractmethod
    def gain(self, c: Values, R: Any, m: Any) -> Any:
        """Return the effective-parameter gain in units of the loop block; zero at R = 1."""

    @abstractmethod
    def gain_and_gradient(self, c: Values, R: Any, m: Any) -> tuple[Any, dict[str, Any]]:
        """Return the gain and its derivative by each coefficient, by name."""

    @abstractmethod
    def asymptote(self, c: Values, m: Any) -> Any:
        """Return the gain's limit for R → ∞ at a fixed ratio m."""

    def dense(self, c: Values) -> tuple[RecurrenceMapping, dict[str, Any]]:
        """Return the mapping at m = 1 with its coefficients."""
        return self, {term.name: c[term.name] for term in self.coefficients}


def mapping(name: str) -> RecurrenceMapping:
    """Return the recurrence mapping called ``name``."""
    if name not in MAPPINGS:
        raise InputError(
            f"recurrence mapping {shown(name)} is not known{nearest(name, MAPPINGS)}; choose from {', '.join(MAPPINGS)}"
        )
    return MAPPINGS[name]


class NoRecurrence(RecurrenceMapping):
    """Looping has no effect: N_eff = N_act. For laws without recurrence."""

    name = "none"
    title = "no recurrence"
    loops = False

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        return np.zeros(np.broadcast(R, m).shape)

    def gain_and_gradient(self, c: Values, R: Any, m: Any) -> tuple[Any, dict[str, Any]]:
        return self.gain(c, R, m), {}

    def asymptote(self, c: Values, m: Any) -> Any:
        return np.zeros(np.shape(m))


class LinearRecurrence(RecurrenceMapping):
    """Each pass is worth the whole loop block: N_eff = N_unroll (eq. recurrence-mappings, left)."""

    name = "linear"
    title = "linear recurrence"
    formula = r"R - 1"

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        return np.asarray(R) - 1.0 + np.zeros(np.shape(m))

    def gain_and_gradient(self, c: Values, R: Any, m: Any) -> tuple[Any, dict[str, Any]]:
        return self.gain(c, R, m), {}

    def asymptote(self, c: Values, m: Any) -> Any:
        return np.full(np.shape(m), np.inf)


class PowerLawRecurrence(RecurrenceMapping):
    """R passes are worth R^phi loop blocks (eq. recurrence-mappings, right)."""

    name = "power"
    title = "power-law recurrence"
    formula = r"R^{\phi} - 1"
    coefficients = (PHI,)

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        return np.expm1(c["phi"] * np.log(R)) + np.zeros(np.shape(m))

    def gain_and_gradient(self, c: Values, R: Any, m: Any) -> tuple[Any, dict[str, Any]]:
        log_R = np.log(R) + np.zeros(np.shape(m))
        return self.gain(c, R, m), {"phi": np.exp(c["phi"] * log_R) * log_R}

    def asymptote(self, c: Values, m: Any) -> Any:
        """Grow without bound for phi > 0; lose the whole block for phi < 0."""
        phi = np.asarray(c["phi"]) + np.zeros(np.shape(m))
        return np.where(phi > 0, np.inf, np.where(phi < 0, -1.0, 0.0))


class BoundedRecurrence(RecurrenceMapping):
    """The gain saturates at kappa1 over about kappa2 passes (eq. bounded-dense)."""

    name = "bounded"
    title = "bounded recurrence"
    formula = r"\kappa_{1} \left(1 - e^{-(R - 1) / \kappa_{2}}\right)"
    coefficients = (KAPPA1, KAPPA2)

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        return -c["kappa1"] * np.expm1(-(R - 1.0) / c["kappa2"]) + np.zeros(np.shape(m))

    def gain_and_gradient(self, c: Values, R: Any, m: Any) -> tuple[Any, dict[str, Any]]:
        x = (R - 1.0) / c["kappa2"] + np.zeros(np.shape(m))
        by = {"kappa1": -np.expm1(-x), "kappa2": -c["kappa1"] * np.exp(-x) * x / c["kappa2"]}
        return self.gain(c, R, m), by

    def asymptote(self, c: Values, m: Any) -> Any:
        return c["kappa1"] + np.zeros(np.shape(m))


class SparsityConditional(RecurrenceMapping):
    """Bounded, with kappa_j(m) = kappa_j m^-theta: sparsity raises the bound and delays it (eq. bounded-moe)."""

    name = "sparsity-conditional"
    title = "sparsity-conditional recurrence"
    formula = r"\kappa_{1} m^{-\theta} \left(1 - e^{-(R - 1) / (\kappa_{2} m^{-\theta})}\right)"
    coefficients: ClassVar[tuple[Coefficient, ...]] = (KAPPA1, KAPPA2, THETA)
    needs_ratio = True

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        return _conditional_gain(c["kappa1"], c["kappa2"], c["theta"], c["theta"], R, m)

    def gain_and_gradient(self, c: Values, R: Any, m: Any) -> tuple[Any, dict[str, Any]]:
        gain, d2 = _conditional_slopes(c["kappa1"], c["kappa2"], c["theta"], c["theta"], R, m)
        by = {"kappa1": gain / c["kappa1"], "kappa2": d2 / c["kappa2"], "theta": -(gain + d2) * np.log(m)}
        return gain, by

    def asymptote(self, c: Values, m: Any) -> Any:
        return c["kappa1"] * np.exp(-c["theta"] * np.log(m))

    def dense(self, c: Values) -> tuple[RecurrenceMapping, dict[str, Any]]:
        return BoundedRecurrence(), {"kappa1": c["kappa1"], "kappa2": c["kappa2"]}


class TwoExponents(SparsityConditional):
    """Bounded, with kappa1 m^-theta1 and kappa2 m^-theta2: the appendix's ablation."""

    name = "two-exponents"
    title = "sparsity-conditional recurrence with two exponents"
    formula = r"\kappa_{1} m^{-\theta_{1}} \left(1 - e^{-(R - 1) / (\kappa_{2} m^{-\theta_{2}})}\right)"
    coefficients = (KAPPA1, KAPPA2, THETA1, THETA2)

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        return _conditional_gain(c["kappa1"], c["kappa2"], c["theta1"], c["theta2"], R, m)

    def gain_and_gradient(self, c: Values, R: Any, m: Any) -> tuple[Any, dict[str, Any]]:
        gain, d2 = _conditional_slopes(c["kappa1"], c["kappa2"], c["theta1"], c["theta2"], R, m)
        log_m = np.log(m)
        return gain, {
            "kappa1": gain / c["kappa1"],
            "kappa2": d2 / c["kappa2"],
            "theta1": -gain * log_m,
            "theta2": -d2 * log_m,
        }

    def asymptote(self, c: Values, m: Any) -> Any:
        return c["kappa1"] * np.exp(-c["theta1"] * np.log(m))


def _height_and_stretch(k1: Any, k2: Any, t1: Any, t2: Any, R: Any, m: Any) -> tuple[Any, Any]:
    """Return kappa1(m) and (R - 1) / kappa2(m)."""
    log_m = np.log(m)
    height = np.exp(-t1 * log_m)
    width = height if t2 is t1 else np.exp(-t2 * log_m)
    return k1 * height, (R - 1.0) / (k2 * width)


def _conditional_gain(k1: Any, k2: Any, t1: Any, t2: Any, R: Any, m: Any) -> Any:
    height, x = _height_and_stretch(k1, k2, t1, t2, R, m)
    x = np.asarray(x)
    np.expm1(np.negative(x, out=x), out=x)
    return in_place(np.multiply, x, -height)


def _conditional_slopes(k1: Any, k2: Any, t1: Any, t2: Any, R: Any, m: Any) -> tuple[Any, Any]:
    """Return the conditional gain's derivatives by ln kappa1(m), which is the gain itself, and by ln kappa2(m)."""
    height, x = _height_and_stretch(k1, k2, t1, t2, R, m)
    saturation = -np.expm1(-x)
    return height * saturation, height * (saturation - 1.0) * x
