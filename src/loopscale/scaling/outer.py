"""Outer laws: loss from effective parameters N, tokens D and experts E.

N and D are in the law's own units. Exponents are negative, as in the paper: L = A N^alpha + B D^beta + c.
A new outer law is one class here, and its test.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from loopscale.core.arrays import Values, in_place
from loopscale.scaling.coefficients import Coefficient, Role, Term

OUTER_LAWS: dict[str, OuterLaw] = {}
"""Every outer law that has a name, in the order of their classes."""


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
    group: Any = None
    """Number of the group that a row belongs to, where several groups are fitted together."""

    def rows(self, chosen: Any) -> Inputs:
        """Return some of the rows; a field that is one number for all of them stays."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Inputs(**{name: value[chosen] if np.ndim(value) else value for name, value in values.items()})


class Gradient(NamedTuple):
    """A loss with its derivatives by each coefficient and by N; these broadcast to the loss's shape."""

    loss: Any
    by_coefficient: dict[str, Any]
    by_parameters: Any


class OuterLaw(ABC):
    """Loss as a function of N, D and E. Values broadcast; coefficients are given by name.

    A subclass that states its ``name`` joins ``OUTER_LAWS``: fits, plans, files and commands then know it. One whose
    name depends on its arguments has no fixed name.
    """

    name: str
    """What files and commands call it."""
    title: str
    """What texts call it."""
    coefficients: tuple[Coefficient, ...]
    uses_experts: bool = False
    uses_tokens: bool = True
    uses_unique: bool = False
    """Whether the loss depends on how many of the tokens are unique."""
    rescales: bool = True
    """Whether the coefficients can be rewritten for other units of N and D."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            OUTER_LAWS[cls.name] = cls()

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

    def problem(self, c: Mapping[str, float]) -> str | None:
        """Say why the law cannot take these values of its coefficients together; None where it can."""
        return None

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

    def problem(self, c: Mapping[str, float]) -> str | None:
        return _expert_problem(c)

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

    def problem(self, c: Mapping[str, float]) -> str | None:
        return _expert_problem(c)

    def at_one_expert(self, c: Values) -> tuple[OuterLaw, dict[str, Any]]:
        """Reduce to a power of N alone: Chinchilla's form with neither a data term nor irreducible loss."""
        x = np.log10(c["E_start"])
        level = np.exp(np.log(10.0) * (c["d"] + c["b"] * x))
        return Chinchilla(), {"A": level, "alpha": c["a"] + c["c"] * x, "B": 0.0, "beta": 0.0, "c": 0.0}

    def typical(self, loss: Any, N: Any, D: Any, E: Any) -> dict[str, float]:
        level = float(np.log10(loss).mean() + 0.1 * np.log10(N).mean())
        sized = {"d": level, "E_max": max(100.0, 2.0 * float(np.max(E)))}
        return {c.name: sized[c.name] if c.typical is None else c.typical for c in self.coefficients}


class Kaplan(OuterLaw):
    """L = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D (Kaplan et al. 2020, eq. 1.5): no irreducible loss."""

    name = "kaplan"
    title = "Kaplan law"
    coefficients = (
        Coefficient("N_c", 1e-2, 1e9, "parameters at which size alone gives a loss of 1", Term.SIZE, Role.SCALE),
        Coefficient("alpha_N", 1e-3, 1.0, "exponent of the parameters", Term.SIZE, Role.EXPONENT, 0.08, positive=True),
        Coefficient("D_c", 1e-2, 1e9, "tokens at which data alone give a loss of 1", Term.DATA, Role.SCALE),
        Coefficient("alpha_D", 1e-3, 1.0, "exponent of the tokens", Term.DATA, Role.EXPONENT, 0.1, positive=True),
    )

    def loss(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        return self.gradient(c, N, D, E).loss

    def gradient(self, c: Values, N: Any, D: Any, E: Any) -> Gradient:
        ratio, log_ratio = c["alpha_N"] / c["alpha_D"], np.log(c["N_c"]) - np.log(N)
        size = np.exp(ratio * log_ratio)
        total = size + c["D_c"] / D + np.zeros(np.shape(E))
        loss = np.exp(c["alpha_D"] * np.log(total))
        per = loss / total
        by = {
            "N_c": per * size * c["alpha_N"] / c["N_c"],
            "alpha_N": per * size * log_ratio,
            "D_c": per * c["alpha_D"] / D,
            "alpha_D": loss * np.log(total) - per * size * ratio * log_ratio,
        }
        return Gradient(loss, by, -per * size * c["alpha_N"] / N)

    def token_slope(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        loss = self.loss(c, N, D, E)
        return -c["alpha_D"] * loss ** (1 - 1 / c["alpha_D"]) * c["D_c"] / D**2

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        return {**c, "N_c": c["N_c"] / parameters, "D_c": c["D_c"] / tokens}

    def equation(self, c: Values) -> str:
        size = f"({c['N_c']:.4g} / N)^{c['alpha_N'] / c['alpha_D']:.4g}"
        return f"L = ({size} + {c['D_c']:.4g} / D)^{c['alpha_D']:.4g}"

    def typical(self, loss: Any, N: Any, D: Any, E: Any) -> dict[str, float]:
        half = float(np.mean(loss)) ** (1 / 0.1) / 2
        return {
            "N_c": float(np.exp(np.log(N).mean())) * half ** (0.1 / 0.08),
            "alpha_N": 0.08,
            "D_c": float(np.exp(np.log(D).mean())) * half,
            "alpha_D": 0.1,
        }


class Interaction(OuterLaw):
    """L = A N^alpha + B N^mu D^(beta + eta ln N) + c: size changes what data are worth; mu = eta = 0 is Chinchilla."""

    name = "interaction"
    title = "N-D interaction law"
    coefficients = (
        A, ALPHA, B, BETA, C,
        Coefficient("mu", -1.0, 1.0, "how size scales the data term", Term.DATA, typical=0.0, neutral=0.0),
        Coefficient("eta", -0.3, 0.3, "how size changes the data exponent", Term.DATA, typical=0.0, neutral=0.0),
    )  # fmt: skip

    def loss(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        return self.gradient(c, N, D, E).loss

    def gradient(self, c: Values, N: Any, D: Any, E: Any) -> Gradient:
        log_N, log_D = np.log(N), np.log(D)
        unit_size = np.exp(c["alpha"] * log_N)
        unit_data = np.exp(c["mu"] * log_N + (c["beta"] + c["eta"] * log_N) * log_D)
        size, data = c["A"] * unit_size, c["B"] * unit_data
        loss = size + data + c["c"] + np.zeros(np.shape(E))
        one = np.ones(np.shape(loss))
        by = {
            "A": unit_size * one,
            "alpha": size * log_N * one,
            "B": unit_data * one,
            "beta": data * log_D * one,
            "c": one,
            "mu": data * log_N * one,
            "eta": data * log_N * log_D * one,
        }
        return Gradient(loss, by, (size * c["alpha"] + data * (c["mu"] + c["eta"] * log_D)) / N * one)

    def token_slope(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        exponent = c["beta"] + c["eta"] * np.log(N)
        return c["B"] * exponent * np.exp(c["mu"] * np.log(N) + (exponent - 1) * np.log(D))

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        beta = c["beta"] + c["eta"] * np.log(parameters)
        return {
            **c,
            "A": c["A"] * parameters ** c["alpha"],
            "B": c["B"] * parameters ** c["mu"] * tokens**beta,
            "beta": beta,
            "mu": c["mu"] + c["eta"] * np.log(tokens),
        }

    def equation(self, c: Values) -> str:
        size = f"{c['A']:.4g} / N^{-c['alpha']:.4g}"
        data = f"{c['B']:.4g} N^{c['mu']:.4g} D^({c['beta']:.4g} {c['eta']:+.4g} ln N)"
        return f"L = {c['c']:.4g} + {size} + {data}"


def _expert_problem(c: Mapping[str, float]) -> str | None:
    if c["E_start"] < c["E_max"]:
        return None
    return f"E_start is {c['E_start']} and E_max {c['E_max']}; E_start should be the smaller"


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


def _power(scale: Any, base: Any, exponent: Any) -> Any:
    """Return scale * base^exponent."""
    power = np.asarray(exponent * np.log(base))
    return in_place(np.multiply, np.exp(power, out=power), scale)
