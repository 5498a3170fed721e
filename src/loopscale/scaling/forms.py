"""The forms of laws: coefficients, recurrence mappings (gain from R passes), outer laws (loss from N, D and E).

N and D are in the law's own units. Exponents are negative, as in the paper: L = A N^alpha + B D^beta + c.
A form lists its coefficients, and each coefficient describes itself: a new form is one class here and its test.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import numpy as np

from loopscale.core.arrays import Values
from loopscale.core.errors import InputError, nearest, shown


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

    def gain_and_gradient(self, c: Values, R: Any, m: Any) -> tuple[Any, dict[str, Any]]:
        """Return both, where a mapping can share work between them."""
        return self.gain(c, R, m), self.gain_gradient(c, R, m)

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
        return self.gain_and_gradient(c, R, m)[1]

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
        return self.gain_and_gradient(c, R, m)[1]

    def gain_and_gradient(self, c: Values, R: Any, m: Any) -> tuple[Any, dict[str, Any]]:
        gain, d2 = _conditional_slopes(c["kappa1"], c["kappa2"], c["theta"], c["theta"], R, m)
        by = {"kappa1": gain / c["kappa1"], "kappa2": d2 / c["kappa2"], "theta": -(gain + d2) * np.log(m)}
        return gain, by

    def asymptote(self, c: Values, m: Any) -> Any:
        return c["kappa1"] * np.exp(-c["theta"] * np.log(m))

    def sparse_limit(self, c: Values, R: Any) -> Any:
        return _sparse_limit(c["kappa1"], c["kappa2"], c["theta"], c["theta"], R)

    def dense(self, c: Values) -> tuple[RecurrenceMapping, dict[str, Any]]:
        return Bounded(), {"kappa1": c["kappa1"], "kappa2": c["kappa2"]}


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
    """A loss with its derivatives by each coefficient and by N; these broadcast to the loss's shape."""

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

    def at_one_expert(self, c: Values) -> tuple[OuterLaw, dict[str, Any]]:
        """Return the dense law that this is at E = 1, with its coefficients: itself, unless it depends on E."""
        return self, {term.name: c[term.name] for term in self.coefficients}

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


def effective(active: Any, loop: Any, gain: Any) -> Any:
    """Return N_eff = N_act + g_eff N_loop: the capacity that a gain of ``gain`` loop blocks is worth."""
    return in_place(np.add, gain * loop, active)


def in_place(operation: np.ufunc, first: Any, second: Any) -> Any:
    """Return ``operation(first, second)``, written over ``first`` where it is an array of the result's shape and kind.

    Only for an intermediate result that nothing else holds: over many laws a new array for each step costs more than
    the arithmetic.
    """
    if np.ndim(first) and np.broadcast(first, second).shape == first.shape and not np.iscomplexobj(second):
        return operation(first, second, out=first)
    return operation(first, second)


def _power(scale: Any, base: Any, exponent: Any) -> Any:
    """Return scale * base^exponent."""
    power = np.asarray(exponent * np.log(base))
    return in_place(np.multiply, np.exp(power, out=power), scale)


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
        if not self.mapping.loops:
            loss, by, _ = self.outer.gradient_at(c, x.N, x)
            return loss, by
        gain, slopes = self.mapping.gain_and_gradient(c, x.R, x.m)
        loss, by, by_N = self.outer.gradient_at(c, effective(x.N, x.loop, gain), x)
        by_gain = by_N * x.loop
        return loss, by | {name: by_gain * slope for name, slope in slopes.items()}

    def typical(self, loss: Any, x: Inputs) -> dict[str, float]:
        """Return a plausible value for every coefficient, for losses observed at ``x`` in billions."""
        gain = {c.name: c.typical for c in self.mapping.coefficients if c.typical is not None}
        return self.outer.typical(loss, x.N, x.D, x.E) | gain

    def _effective(self, c: Values, x: Inputs) -> Any:
        return effective(x.N, x.loop, self.mapping.gain(c, x.R, x.m)) if self.mapping.loops else x.N


A = Coefficient("A", 1e-6, 1e3, "size of the parameter term", Term.SIZE, Role.SCALE)
ALPHA = Coefficient("alpha", -2.0, 0.0, "exponent of the parameters", Term.SIZE, Role.EXPONENT, -0.3, published_sign=-1)
B = Coefficient("B", 1e-6, 1e4, "size of the data term", Term.DATA, Role.SCALE)
BETA = Coefficient("beta", -2.0, 0.0, "exponent of the tokens", Term.DATA, Role.EXPONENT, -0.3, published_sign=-1)
C = Coefficient("c", 0.0, 10.0, "irreducible loss", Term.IRREDUCIBLE)
DELTA = Coefficient(
    "delta", -3.0, 3.0, "exponent of the experts in the parameter term", Term.EXPERTS, typical=-0.1, neutral=0.0
)
GAMMA = Coefficient(
    "gamma", -1.0, 1.0, "how experts change the parameter exponent", Term.EXPERTS, typical=0.0, neutral=0.0
)
OMEGA = Coefficient(
    "omega", -3.0, 3.0, "exponent of the experts in the data term", Term.EXPERTS, typical=0.0, neutral=0.0
)
ZETA = Coefficient("zeta", -1.0, 1.0, "how experts change the data exponent", Term.EXPERTS, typical=0.0, neutral=0.0)
E_START = Coefficient(
    "E_start", 1.0, 20.0, "effective experts of a dense model", Term.EXPERTS, typical=2.0, positive=True
)
E_MAX = Coefficient("E_max", 20.0, 2000.0, "effective experts in the limit of many", Term.EXPERTS, positive=True)


class Chinchilla(OuterLaw):
    """L = A N^alpha + B D^beta + c (eq. chinchilla)."""

    name = "chinchilla"
    title = "Chinchilla law"
    coefficients = (A, ALPHA, B, BETA, C)

    def loss(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        terms = c["A"] * np.exp(c["alpha"] * np.log(N)) + c["B"] * np.exp(c["beta"] * np.log(D))
        return terms + c["c"] + np.zeros(np.shape(E))

    def gradient(self, c: Values, N: Any, D: Any, E: Any) -> Gradient:
        log_N, log_D = np.log(N), np.log(D)
        size, data = np.exp(c["alpha"] * log_N), np.exp(c["beta"] * log_D)
        by_log_N, by_log_D = c["A"] * size, c["B"] * data
        loss = by_log_N + by_log_D + c["c"] + np.zeros(np.shape(E))
        by = {
            "A": size,
            "alpha": by_log_N * log_N,
            "B": data,
            "beta": by_log_D * log_D,
            "c": np.ones(np.shape(loss)),
        }
        return Gradient(loss, by, by_log_N * c["alpha"] / N)

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        return {**c, "A": c["A"] * parameters ** c["alpha"], "B": c["B"] * tokens ** c["beta"]}

    def token_slope(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        return c["B"] * c["beta"] * np.exp((c["beta"] - 1) * np.log(D)) + np.zeros(np.shape(N))

    def equation(self, c: Values) -> str:
        size = f"{c['A']:.4g} / N^{-c['alpha']:.4g}"
        return f"L = {c['c']:.4g} + {size} + {c['B']:.4g} / D^{-c['beta']:.4g}"


class JointMoE(OuterLaw):
    """L = A Ê^delta N^(alpha + gamma ln Ê) + B Ê^omega D^(beta + zeta ln Ê) + c (eq. moe-full)."""

    name = "joint-moe"
    title = "joint MoE law"
    coefficients = (A, ALPHA, B, BETA, C, DELTA, GAMMA, OMEGA, ZETA, E_START, E_MAX)
    uses_experts = True

    def loss(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        x = np.log(effective_experts(E, c["E_start"], c["E_max"]))
        size = _power(c["A"] * np.exp(c["delta"] * x), N, c["alpha"] + c["gamma"] * x)
        data = _power(c["B"] * np.exp(c["omega"] * x), D, c["beta"] + c["zeta"] * x)
        return in_place(np.add, in_place(np.add, size, data), c["c"])

    def gradient(self, c: Values, N: Any, D: Any, E: Any) -> Gradient:
        E_hat, by_start, by_max = effective_experts_gradient(E, c["E_start"], c["E_max"])
        x, log_N, log_D = np.log(E_hat), np.log(N), np.log(D)
        unit_size = np.exp(c["delta"] * x + (c["alpha"] + c["gamma"] * x) * log_N)
        unit_data = np.exp(c["omega"] * x + (c["beta"] + c["zeta"] * x) * log_D)
        size, data = c["A"] * unit_size, c["B"] * unit_data
        loss = size + data + c["c"]
        by_delta, by_omega = size * x, data * x
        by_E = (size * (c["delta"] + c["gamma"] * log_N) + data * (c["omega"] + c["zeta"] * log_D)) / E_hat
        by = {
            "A": unit_size,
            "alpha": size * log_N,
            "B": unit_data,
            "beta": data * log_D,
            "c": np.ones(np.shape(loss)),
            "delta": by_delta,
            "gamma": by_delta * log_N,
            "omega": by_omega,
            "zeta": by_omega * log_D,
            "E_start": by_E * by_start,
            "E_max": by_E * by_max,
        }
        return Gradient(loss, by, size * (c["alpha"] + c["gamma"] * x) / N)

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        return {
            **c,
            "A": c["A"] * parameters ** c["alpha"],
            "delta": c["delta"] + c["gamma"] * np.log(parameters),
            "B": c["B"] * tokens ** c["beta"],
            "omega": c["omega"] + c["zeta"] * np.log(tokens),
        }

    def token_slope(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        x = np.log(effective_experts(E, c["E_start"], c["E_max"]))
        exponent = c["beta"] + c["zeta"] * x
        slope = c["B"] * exponent * np.exp(c["omega"] * x + (exponent - 1) * np.log(D))
        return slope + np.zeros(np.shape(N))

    def equation(self, c: Values) -> str:
        size = f"{c['A']:.4g} Ê^{c['delta']:.4g} N^({c['alpha']:.4g} {c['gamma']:+.4g} ln Ê)"
        data = f"{c['B']:.4g} Ê^{c['omega']:.4g} D^({c['beta']:.4g} {c['zeta']:+.4g} ln Ê)"
        return f"L = {c['c']:.4g} + {size} + {data}"

    def at_one_expert(self, c: Values) -> tuple[OuterLaw, dict[str, Any]]:
        """Use Ê(1) = E_start (proposition moe-loop-equivalence)."""
        x = np.log(c["E_start"])
        return Chinchilla(), {
            "A": c["A"] * np.exp(c["delta"] * x),
            "alpha": c["alpha"] + c["gamma"] * x,
            "B": c["B"] * np.exp(c["omega"] * x),
            "beta": c["beta"] + c["zeta"] * x,
            "c": c["c"],
        }


class Routed(OuterLaw):
    """Clark's routed law: log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d. It has no token term."""

    name = "routed"
    title = "routed law"
    coefficients = (
        Coefficient("a", -1.0, 0.0, "exponent of the parameters", Term.SIZE, Role.EXPONENT, -0.1),
        Coefficient("b", -1.0, 1.0, "exponent of the experts", Term.EXPERTS, typical=-0.1, neutral=0.0),
        Coefficient(
            "c", -0.5, 0.5, "how experts change the parameter exponent", Term.EXPERTS, typical=0.0, neutral=0.0
        ),
        Coefficient("d", -3.0, 5.0, "log10 of the loss of one parameter", Term.SIZE),
        E_START,
        E_MAX,
    )
    uses_experts = True
    uses_tokens = False

    def loss(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        return self.gradient(c, N, D, E).loss

    def gradient(self, c: Values, N: Any, D: Any, E: Any) -> Gradient:
        E_hat, by_start, by_max = effective_experts_gradient(E, c["E_start"], c["E_max"])
        x, log_N = np.log10(E_hat), np.log10(N)
        exponent = c["a"] * log_N + c["b"] * x + c["c"] * log_N * x + c["d"] + np.zeros(np.shape(D))
        loss = np.exp(np.log(10.0) * exponent)
        by_log10 = loss * np.log(10.0)  # dL / d(log10 L)
        by_E = loss * (c["b"] + c["c"] * log_N) / E_hat
        by = {
            "a": by_log10 * log_N,
            "b": by_log10 * x,
            "c": by_log10 * log_N * x,
            "d": by_log10,
            "E_start": by_E * by_start,
            "E_max": by_E * by_max,
        }
        return Gradient(loss, by, loss * (c["a"] + c["c"] * x) / N)

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        shift = np.log10(parameters)
        return {**c, "b": c["b"] + c["c"] * shift, "d": c["d"] + c["a"] * shift}

    def token_slope(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        return np.zeros(np.broadcast_shapes(np.shape(N), np.shape(D), np.shape(E)))

    def equation(self, c: Values) -> str:
        return f"log10 L = {c['d']:.4g} {c['a']:+.4g} n {c['b']:+.4g} e {c['c']:+.4g} n e, n = log10 N, e = log10 Ê"

    def at_one_expert(self, c: Values) -> tuple[OuterLaw, dict[str, Any]]:
        """Reduce to a power of N alone: Chinchilla's form with neither a data term nor irreducible loss."""
        x = np.log10(c["E_start"])
        level = np.exp(np.log(10.0) * (c["d"] + c["b"] * x))
        return Chinchilla(), {"A": level, "alpha": c["a"] + c["c"] * x, "B": 0.0, "beta": 0.0, "c": 0.0}

    def typical(self, loss: Any, N: Any, D: Any, E: Any) -> dict[str, float]:
        level = float(np.log10(loss).mean() + 0.1 * np.log10(N).mean())
        sized = {"d": level, "E_max": max(100.0, 2.0 * float(np.max(E)))}
        return {c.name: sized[c.name] if c.typical is None else c.typical for c in self.coefficients}


def effective_experts(E: Any, E_start: Any, E_max: Any) -> Any:
    """Return Clark's Ê, which rises with E from E_start (at E = 1) towards E_max."""
    return effective_experts_gradient(E, E_start, E_max)[0]


def effective_experts_gradient(E: Any, E_start: Any, E_max: Any) -> tuple[Any, Any, Any]:
    """Return Ê and its derivatives by E_start and E_max."""
    offset = 1.0 / (1.0 / E_start - 1.0 / E_max)
    shifted = E - 1.0 + offset
    E_hat = 1.0 / (1.0 / shifted + 1.0 / E_max)
    part = (offset / shifted) ** 2
    return E_hat, (E_hat / E_start) ** 2 * part, (E_hat / E_max) ** 2 * (1.0 - part)


OUTER_LAWS: dict[str, OuterLaw] = {law.name: law for law in (Chinchilla(), JointMoE(), Routed())}
"""By name; ``loopscale.scaling.extensions`` adds others."""


def outer_law(law: OuterLaw | str) -> OuterLaw:
    """Return the outer law that is meant: by name, by an expression, or itself."""
    if isinstance(law, OuterLaw):
        return law
    if law in OUTER_LAWS:
        return OUTER_LAWS[law]
    if isinstance(law, str) and re.search(r"\b[ND]\b", law) and re.search(r"[*/()]", law):
        from loopscale.scaling.expressions import Law  # which builds on this module

        return Law.from_expression(law)
    hint = nearest(law, OUTER_LAWS) if isinstance(law, str) else ""
    raise InputError(
        f"outer law {shown(law)} is not known{hint}; choose from {', '.join(OUTER_LAWS)}, or write an expression "
        "like 'c + A/N**alpha + B/D**beta'"
    )
