"""Outer laws: loss from (effective) parameters N, tokens D and experts E.

N and D are in the law's own units. Exponents are negative, as in the paper: L = A N^alpha + B D^beta + c.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from loopscale.arrays import Values
from loopscale.errors import InputError, nearest, shown
from loopscale.laws.coefficients import Coefficient

A = Coefficient("A", 1e-6, 1e3, "size of the parameter term")
ALPHA = Coefficient("alpha", -2.0, 0.0, "exponent of the parameters")
B = Coefficient("B", 1e-6, 1e4, "size of the data term")
BETA = Coefficient("beta", -2.0, 0.0, "exponent of the tokens")
C = Coefficient("c", 0.0, 10.0, "loss that no scale removes")
DELTA = Coefficient("delta", -3.0, 3.0, "exponent of the experts in the parameter term")
GAMMA = Coefficient("gamma", -1.0, 1.0, "how experts change the parameter exponent")
OMEGA = Coefficient("omega", -3.0, 3.0, "exponent of the experts in the data term")
ZETA = Coefficient("zeta", -1.0, 1.0, "how experts change the data exponent")
E_START = Coefficient("E_start", 1.0, 20.0, "effective experts of a dense model")
E_MAX = Coefficient("E_max", 20.0, 2000.0, "effective experts that no expert count exceeds")


class Gradient(NamedTuple):
    """A loss with its derivatives by each coefficient and by N."""

    loss: Any
    by_coefficient: dict[str, Any]
    by_parameters: Any


@dataclass(frozen=True)
class OuterLaw(ABC):
    """Loss as a function of N, D and E. Everything broadcasts; coefficients come by name."""

    name: ClassVar[str]
    coefficients: ClassVar[tuple[Coefficient, ...]]
    uses_experts: ClassVar[bool] = False
    uses_tokens: ClassVar[bool] = True

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


class Chinchilla(OuterLaw):
    """L = A N^alpha + B D^beta + c (eq. chinchilla)."""

    name = "chinchilla"
    coefficients = (A, ALPHA, B, BETA, C)

    def loss(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        terms = c["A"] * np.exp(c["alpha"] * np.log(N)) + c["B"] * np.exp(c["beta"] * np.log(D))
        return terms + c["c"] + np.zeros(np.shape(E))

    def gradient(self, c: Values, N: Any, D: Any, E: Any) -> Gradient:
        log_N, log_D = np.log(N), np.log(D)
        size, data = np.exp(c["alpha"] * log_N), np.exp(c["beta"] * log_D)
        loss = c["A"] * size + c["B"] * data + c["c"] + np.zeros(np.shape(E))
        one = np.ones(np.shape(loss))
        by = {
            "A": size * one,
            "alpha": c["A"] * size * log_N * one,
            "B": data * one,
            "beta": c["B"] * data * log_D * one,
            "c": one,
        }
        return Gradient(loss, by, c["A"] * size * c["alpha"] / N * one)

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        return {**c, "A": c["A"] * parameters ** c["alpha"], "B": c["B"] * tokens ** c["beta"]}

    def at_one_expert(self, c: Values) -> tuple[OuterLaw, dict[str, Any]]:
        return self, {each.name: c[each.name] for each in self.coefficients}


class JointMoE(OuterLaw):
    """L = A Ê^delta N^(alpha + gamma ln Ê) + B Ê^omega D^(beta + zeta ln Ê) + c (eq. moe-full)."""

    name = "joint-moe"
    coefficients = (A, ALPHA, B, BETA, C, DELTA, GAMMA, OMEGA, ZETA, E_START, E_MAX)
    uses_experts = True

    def loss(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        x = np.log(effective_experts(E, c["E_start"], c["E_max"]))
        size = c["A"] * np.exp(c["delta"] * x + (c["alpha"] + c["gamma"] * x) * np.log(N))
        data = c["B"] * np.exp(c["omega"] * x + (c["beta"] + c["zeta"] * x) * np.log(D))
        return size + data + c["c"]

    def gradient(self, c: Values, N: Any, D: Any, E: Any) -> Gradient:
        E_hat, by_start, by_max = effective_experts_gradient(E, c["E_start"], c["E_max"])
        x, log_N, log_D = np.log(E_hat), np.log(N), np.log(D)
        unit_size = np.exp(c["delta"] * x + (c["alpha"] + c["gamma"] * x) * log_N)
        unit_data = np.exp(c["omega"] * x + (c["beta"] + c["zeta"] * x) * log_D)
        size, data = c["A"] * unit_size, c["B"] * unit_data
        loss = size + data + c["c"]
        one = np.ones(np.shape(loss))
        by_x = size * (c["delta"] + c["gamma"] * log_N) + data * (c["omega"] + c["zeta"] * log_D)
        by = {
            "A": unit_size * one,
            "alpha": size * log_N * one,
            "B": unit_data * one,
            "beta": data * log_D * one,
            "c": one,
            "delta": size * x * one,
            "gamma": size * x * log_N * one,
            "omega": data * x * one,
            "zeta": data * x * log_D * one,
            "E_start": by_x * by_start / E_hat,
            "E_max": by_x * by_max / E_hat,
        }
        return Gradient(loss, by, size * (c["alpha"] + c["gamma"] * x) / N * one)

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        return {
            **c,
            "A": c["A"] * parameters ** c["alpha"],
            "delta": c["delta"] + c["gamma"] * np.log(parameters),
            "B": c["B"] * tokens ** c["beta"],
            "omega": c["omega"] + c["zeta"] * np.log(tokens),
        }

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
    coefficients = (
        Coefficient("a", -1.0, 0.0, "exponent of the parameters"),
        Coefficient("b", -1.0, 1.0, "exponent of the experts"),
        Coefficient("c", -0.5, 0.5, "how experts change the parameter exponent"),
        Coefficient("d", -3.0, 5.0, "log10 of the loss of one parameter"),
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

    def at_one_expert(self, c: Values) -> tuple[OuterLaw, dict[str, Any]]:
        """Reduce to a bare power of N: Chinchilla's form with no data term and nothing irreducible."""
        x = np.log10(c["E_start"])
        level = np.exp(np.log(10.0) * (c["d"] + c["b"] * x))
        return Chinchilla(), {"A": level, "alpha": c["a"] + c["c"] * x, "B": 0.0, "beta": 0.0, "c": 0.0}


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


OUTER_LAWS: dict[str, OuterLaw] = {each.name: each for each in (Chinchilla(), JointMoE(), Routed())}


def outer_law(name: str) -> OuterLaw:
    """Return the outer law called ``name``."""
    if name not in OUTER_LAWS:
        raise InputError(
            f"outer law {shown(name)} is not known{nearest(name, OUTER_LAWS)}; choose from {', '.join(OUTER_LAWS)}"
        )
    return OUTER_LAWS[name]
