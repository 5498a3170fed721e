"""What a law is made of: coefficients, recurrence mappings (gain from R passes), and how they join an outer law.

N and D are in the law's own units. Exponents are negative, as in the paper: L = A N^alpha + B D^beta + c.
A form lists its coefficients, and each coefficient describes itself: a new form is one class here and its test.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import numpy as np

from loopscale.arrays import Values
from loopscale.errors import InputError, nearest, shown
from loopscale.laws import costs


class Term(Enum):
    """The part of a law that a coefficient belongs to; data that do not vary along it cannot determine it."""

    SIZE = "size"
    DATA = "data"
    EXPERTS = "experts"
    RECURRENCE = "recurrence"
    REPETITION = "repetition"
    IRREDUCIBLE = "irreducible"


class Role(Enum):
    """What a coefficient does within its term."""

    SCALE = "scale"
    """How large the term is; its value depends on the units of N or D."""
    EXPONENT = "exponent"
    SHAPE = "shape"


@dataclass(frozen=True)
class Coefficient:
    """One coefficient of a form, described well enough that nothing else has to know its name.

    The range, the typical and the neutral value hold with counts in billions.
    """

    name: str
    lower: float
    """The range that a fit searches, unless the user gives another."""
    upper: float
    meaning: str
    term: Term
    role: Role = Role.SHAPE
    typical: float | None = None
    """Where a search starts; None where :meth:`OuterLaw.typical` sizes it by the data."""
    neutral: float | None = None
    """The value at which the effect is absent; None where there is none."""
    published_sign: int = 1
    """-1 where the literature prints the value with the other sign: A / N^0.34 is alpha = -0.34 here."""
    positive: bool = False
    """Whether the form needs it above zero."""


PHI = Coefficient("phi", 0.0, 2.0, "exponent of the power-law gain", Term.RECURRENCE, Role.EXPONENT, 0.5, neutral=0.0)
KAPPA1 = Coefficient(
    "kappa1", 1e-3, 50.0, "largest gain of a dense loop, in loop blocks", Term.RECURRENCE, typical=0.5, positive=True
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
    "theta", 0.0, 2.0, "how strongly sparsity raises and stretches the gain", Term.RECURRENCE, typical=0.3, neutral=0.0
)
THETA1 = Coefficient(
    "theta1", 0.0, 2.0, "how strongly sparsity raises the largest gain", Term.RECURRENCE, typical=0.3, neutral=0.0
)
THETA2 = Coefficient(
    "theta2", 0.0, 2.0, "how strongly sparsity stretches the saturation", Term.RECURRENCE, typical=0.3, neutral=0.0
)


@dataclass(frozen=True)
class RecurrenceMapping(ABC):
    """The gain from R passes. Values are numbers or arrays that broadcast; coefficients are given by name."""

    name: ClassVar[str]
    title: ClassVar[str]
    """What texts call it."""
    coefficients: ClassVar[tuple[Coefficient, ...]] = ()
    loops: ClassVar[bool] = True
    """Whether recurrence changes the loss at all."""
    needs_ratio: ClassVar[bool] = False
    """Whether the gain depends on m = N_act / N_total."""

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
        return self, {term.name: c[term.name] for term in self.coefficients}


class NoRecurrence(RecurrenceMapping):
    """Looping has no effect: N_eff = N_act. For laws without recurrence."""

    name = "none"
    title = "no recurrence"
    loops = False

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        return np.zeros(np.broadcast(R, m).shape)

    def gain_gradient(self, c: Values, R: Any, m: Any) -> dict[str, Any]:
        return {}

    def asymptote(self, c: Values, m: Any) -> Any:
        return np.zeros(np.shape(m))


class Linear(RecurrenceMapping):
    """Each pass is worth the whole loop block: N_eff = N_unroll (eq. recurrence-mappings, left)."""

    name = "linear"
    title = "linear recurrence"

    def gain(self, c: Values, R: Any, m: Any) -> Any:
        return np.asarray(R) - 1.0 + np.zeros(np.shape(m))

    def gain_gradient(self, c: Values, R: Any, m: Any) -> dict[str, Any]:
        return {}

    def asymptote(self, c: Values, m: Any) -> Any:
        return np.full(np.shape(m), np.inf)


class PowerLaw(RecurrenceMapping):
    """R passes are worth R^phi loop blocks (eq. recurrence-mappings, right)."""

    name = "power"
    title = "power-law recurrence"
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
    title = "bounded recurrence"
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
    title = "sparsity-conditional recurrence with two exponents"
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
    title = "sparsity-conditional recurrence"
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
    form.name: form for form in (NoRecurrence(), Linear(), PowerLaw(), Bounded(), SparsityConditional(), TwoExponents())
}


def mapping(name: str) -> RecurrenceMapping:
    """Return the recurrence mapping called ``name``."""
    if name not in MAPPINGS:
        raise InputError(
            f"recurrence mapping {shown(name)} is not known{nearest(name, MAPPINGS)}; choose from {', '.join(MAPPINGS)}"
        )
    return MAPPINGS[name]


class Gradient(NamedTuple):
    """A loss with its derivatives by each coefficient and by N."""

    loss: Any
    by_coefficient: dict[str, Any]
    by_parameters: Any


class OuterLaw(ABC):
    """Loss as a function of N, D and E. Values broadcast; coefficients are given by name."""

    name: str
    title: str
    """What texts call it."""
    coefficients: tuple[Coefficient, ...]
    uses_experts: bool = False
    uses_tokens: bool = True
    uses_unique: bool = False
    """Whether the loss depends on how many of the tokens are unique."""
    rescales: bool = True
    """Whether the coefficients can be rewritten for other units of N and D."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @abstractmethod
    def loss(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        """Return the loss in nats per token."""

    @abstractmethod
    def gradient(self, c: Values, N: Any, D: Any, E: Any) -> Gradient:
        """Return the loss and its exact derivatives."""

    @abstractmethod
    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        """Return the coefficients of the same law in units ``parameters`` and ``tokens`` times larger."""

    @abstractmethod
    def at_one_expert(self, c: Values) -> tuple[OuterLaw, dict[str, Any]]:
        """Return the dense law that this is at E = 1, with its re-parameterised coefficients."""

    @abstractmethod
    def token_slope(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        """Return the derivative of the loss by D."""

    @abstractmethod
    def equation(self, c: Values) -> str:
        """Return the law with its numbers, as papers print it."""

    def saved(self) -> str | dict[str, Any]:
        """Return what a law file says of this law: its name, or its definition where it has none."""
        return self.name

    def loss_at(self, c: Values, N: Any, x: Inputs) -> Any:
        """Return the loss at effective parameters N and the other inputs ``x``."""
        return self.loss(c, N, x.D, x.E)

    def gradient_at(self, c: Values, N: Any, x: Inputs) -> Gradient:
        """Return the loss at effective parameters N and ``x``, and its exact derivatives."""
        return self.gradient(c, N, x.D, x.E)

    def typical(self, loss: Any, N: Any, D: Any, E: Any) -> dict[str, float]:
        """Return a plausible value for every coefficient, for observed losses at N and D in billions.

        Half of what lies above the likely irreducible loss is put down to each of size and data.
        """
        floor = 0.7 * float(np.min(loss))
        half = 0.5 * (float(np.mean(loss)) - floor)
        sized = {
            "A": half * float(np.exp(0.3 * np.log(N).mean())),
            "B": half * float(np.exp(0.3 * np.log(D).mean())),
            "c": floor,
            "E_max": max(100.0, 2.0 * float(np.max(E))),
        }
        return {c.name: sized[c.name] if c.typical is None else c.typical for c in self.coefficients}


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a form is evaluated on, in the units of its coefficients; fields broadcast."""

    N: Any
    """N_act"""
    D: Any
    E: Any
    R: Any
    m: Any
    """N_act / N_total, where the mapping needs it."""
    loop: Any
    """N_loop, where recurrence matters."""
    U: Any = None
    """Unique tokens, where the law uses them."""

    def rows(self, chosen: Any) -> Inputs:
        """Return some of the rows; a field that is one number for all of them stays."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Inputs(**{name: value[chosen] if np.ndim(value) else value for name, value in values.items()})


@dataclass(frozen=True)
class Form:
    """An outer law applied to the effective parameters of a recurrence mapping: a law without its coefficients."""

    outer: OuterLaw
    mapping: RecurrenceMapping

    def __str__(self) -> str:
        return f"{self.outer.title}, {self.mapping.title}"

    @property
    def coefficients(self) -> tuple[Coefficient, ...]:
        """All coefficients, in the order of gradients and resamples."""
        return self.outer.coefficients + self.mapping.coefficients

    @property
    def names(self) -> tuple[str, ...]:
        """The coefficients' names, in the same order."""
        return tuple(coefficient.name for coefficient in self.coefficients)

    def loss(self, c: Values, x: Inputs) -> Any:
        """Return the loss in nats per token."""
        return self.outer.loss_at(c, self._effective(c, x), x)

    def gradient(self, c: Values, x: Inputs) -> tuple[Any, dict[str, Any]]:
        """Return the loss and its exact derivative by each coefficient, by name."""
        loss, by, by_N = self.outer.gradient_at(c, self._effective(c, x), x)
        if self.mapping.loops:
            by_gain = by_N * x.loop
            by |= {name: by_gain * slope for name, slope in self.mapping.gain_gradient(c, x.R, x.m).items()}
        return loss, by

    def typical(self, loss: Any, x: Inputs) -> dict[str, float]:
        """Return a plausible value for every coefficient, for losses observed at ``x`` in billions."""
        gain = {c.name: c.typical for c in self.mapping.coefficients if c.typical is not None}
        return self.outer.typical(loss, x.N, x.D, x.E) | gain

    def _effective(self, c: Values, x: Inputs) -> Any:
        return costs.effective(x.N, x.loop, self.mapping.gain(c, x.R, x.m)) if self.mapping.loops else x.N
