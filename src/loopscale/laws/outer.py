"""The outer laws: loss from (effective) parameters N, tokens D and experts E, in closed form with exact derivatives.

A new law is one class here, its entry in ``OUTER_LAWS`` and its test.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from loopscale.arrays import Values
from loopscale.errors import InputError, nearest, shown
from loopscale.laws.expressions import Law
from loopscale.laws.forms import Coefficient, Gradient, Inputs, OuterLaw, Role, Term

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

    def token_slope(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        return c["B"] * c["beta"] * np.exp((c["beta"] - 1) * np.log(D)) + np.zeros(np.shape(N))

    def equation(self, c: Values) -> str:
        size = f"{c['A']:.4g} / N^{-c['alpha']:.4g}"
        return f"L = {c['c']:.4g} + {size} + {c['B']:.4g} / D^{-c['beta']:.4g}"

    def at_one_expert(self, c: Values) -> tuple[OuterLaw, dict[str, Any]]:
        return self, {term.name: c[term.name] for term in self.coefficients}


class JointMoE(OuterLaw):
    """L = A Ê^delta N^(alpha + gamma ln Ê) + B Ê^omega D^(beta + zeta ln Ê) + c (eq. moe-full)."""

    name = "joint-moe"
    title = "joint MoE law"
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

    def at_one_expert(self, c: Values) -> tuple[OuterLaw, dict[str, Any]]:
        return self, {term.name: c[term.name] for term in self.coefficients}


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

    def at_one_expert(self, c: Values) -> tuple[OuterLaw, dict[str, Any]]:
        return self, {term.name: c[term.name] for term in self.coefficients}

    def typical(self, loss: Any, N: Any, D: Any, E: Any) -> dict[str, float]:
        half = float(np.mean(loss)) ** (1 / 0.1) / 2
        return {
            "N_c": float(np.exp(np.log(N).mean())) * half ** (0.1 / 0.08),
            "alpha_N": 0.08,
            "D_c": float(np.exp(np.log(D).mean())) * half,
            "alpha_D": 0.1,
        }


R_D = Coefficient(
    "R_D",
    0.1,
    1e3,
    "repetitions after which repeated tokens stop helping",
    Term.REPETITION,
    typical=15.0,
    positive=True,
)
R_N = Coefficient(
    "R_N", 0.1, 1e3, "how much parameters beyond N_U U still help", Term.REPETITION, typical=5.0, positive=True
)
N_U = Coefficient(
    "N_U",
    1e-4,
    1e2,
    "parameters per unique token beyond which more help less",
    Term.REPETITION,
    typical=0.1,
    positive=True,
)


class Repeated(OuterLaw):
    """Any outer law on data that are seen several times (Muennighoff et al. 2023).

    With U unique tokens, D trained ones are worth D' = U + U R_D (1 - exp(-(D / U - 1) / R_D)). With ``excess``,
    parameters beyond N_U U count for less in the same way; the authors take N_U from the compute-optimal model of U.
    """

    uses_unique = True

    def __init__(self, inner: OuterLaw, excess: bool = False) -> None:
        self.inner, self.excess = inner, excess
        self.name = f"{inner.name}+{'excess' if excess else 'repetition'}"
        self.title = f"{inner.title} with repeated data" + (" and excess parameters" if excess else "")
        self.coefficients = inner.coefficients + ((R_D, R_N, N_U) if excess else (R_D,))
        self.uses_experts, self.uses_tokens = inner.uses_experts, inner.uses_tokens

    def loss(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        """Return the loss where every token is seen once."""
        return self.inner.loss(c, N, D, E)

    def gradient(self, c: Values, N: Any, D: Any, E: Any) -> Gradient:
        loss, by, by_N = self.inner.gradient(c, N, D, E)
        own = self.coefficients[len(self.inner.coefficients) :]
        return Gradient(loss, by | {term.name: np.zeros(np.shape(loss)) for term in own}, by_N)

    def loss_at(self, c: Values, N: Any, x: Inputs) -> Any:
        size = _saturated(N, c["N_U"] * x.U, c["R_N"]).value if self.excess else N
        return self.inner.loss(c, size, _saturated(x.D, x.U, c["R_D"]).value, x.E)

    def gradient_at(self, c: Values, N: Any, x: Inputs) -> Gradient:
        data = _saturated(x.D, x.U, c["R_D"])
        size = _saturated(N, c["N_U"] * x.U, c["R_N"]) if self.excess else _Saturated(N, 1.0, 0.0, 0.0)
        loss, by, by_N = self.inner.gradient(c, size.value, data.value, x.E)
        by["R_D"] = self.inner.token_slope(c, size.value, data.value, x.E) * data.by_scale
        if self.excess:
            by["R_N"], by["N_U"] = by_N * size.by_scale, by_N * size.by_knee * x.U
        return Gradient(loss, by, by_N * size.by_value)

    def token_slope(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        return self.inner.token_slope(c, N, D, E)

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        values = self.inner.rescaled(c, parameters, tokens)
        return values | {"N_U": c["N_U"] * tokens / parameters} if self.excess else values

    def at_one_expert(self, c: Values) -> tuple[OuterLaw, dict[str, Any]]:
        inner, values = self.inner.at_one_expert(c)
        own = self.coefficients[len(self.inner.coefficients) :]
        return Repeated(inner, self.excess), values | {term.name: c[term.name] for term in own}

    def equation(self, c: Values) -> str:
        data = f"D = U + {c['R_D']:.4g} U (1 - exp(-(D/U - 1) / {c['R_D']:.4g}))"
        return f"{self.inner.equation(c)}, {data}"

    def typical(self, loss: Any, N: Any, D: Any, E: Any) -> dict[str, float]:
        own = self.coefficients[len(self.inner.coefficients) :]
        return self.inner.typical(loss, N, D, E) | {term.name: term.typical for term in own if term.typical is not None}


O = Coefficient("O", 1e-9, 1e2, "size of the overfitting term", Term.REPETITION, typical=0.01, positive=True)  # noqa: E741
NU = Coefficient("nu", 0.05, 4.0, "exponent of the overfitting term", Term.REPETITION, Role.SHAPE, 0.6, positive=True)


class Overfit(OuterLaw):
    """Any outer law plus O ((N / U) (D / U - 1))^nu: loss that rises again when a large model repeats few tokens.

    The term is zero while every token is new. Repeated data lose their value in :class:`Repeated`, but never harm.
    """

    uses_unique = True

    def __init__(self, inner: OuterLaw) -> None:
        self.inner, self.name, self.title = inner, f"{inner.name}+overfit", f"{inner.title} with overfitting"
        self.coefficients = (*inner.coefficients, O, NU)
        self.uses_experts, self.uses_tokens = inner.uses_experts, inner.uses_tokens

    def loss(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        """Return the loss where every token is seen once."""
        return self.inner.loss(c, N, D, E)

    def gradient(self, c: Values, N: Any, D: Any, E: Any) -> Gradient:
        return self.gradient_at(c, N, Inputs(N, D, E, 1.0, 1.0, 0.0, D))

    def loss_at(self, c: Values, N: Any, x: Inputs) -> Any:
        return self.inner.loss(c, N, x.D, x.E) + c["O"] * self._power(c, N, x)[0]

    def gradient_at(self, c: Values, N: Any, x: Inputs) -> Gradient:
        loss, by, by_N = self.inner.gradient(c, N, x.D, x.E)
        power, log = self._power(c, N, x)
        by |= {"O": power, "nu": c["O"] * power * log}
        return Gradient(loss + c["O"] * power, by, by_N + c["O"] * c["nu"] * power / N)

    def token_slope(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        return self.inner.token_slope(c, N, D, E)

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        return self.inner.rescaled(c, parameters, tokens) | {"O": c["O"] * (parameters / tokens) ** c["nu"]}

    def at_one_expert(self, c: Values) -> tuple[OuterLaw, dict[str, Any]]:
        inner, values = self.inner.at_one_expert(c)
        return Overfit(inner), values | {"O": c["O"], "nu": c["nu"]}

    def equation(self, c: Values) -> str:
        return f"{self.inner.equation(c)} + {c['O']:.4g} (N/U (D/U - 1))^{c['nu']:.4g}"

    def typical(self, loss: Any, N: Any, D: Any, E: Any) -> dict[str, float]:
        return self.inner.typical(loss, N, D, E) | {"O": 0.01, "nu": 0.6}

    @staticmethod
    def _power(c: Values, N: Any, x: Inputs) -> tuple[Any, Any]:
        """Return ((N / U) (D / U - 1))^nu and the logarithm of its base; both zero where no token is repeated."""
        repeated = np.real(x.D) > np.real(x.U)
        log = np.where(repeated, np.log(N / x.U) + np.log(np.where(repeated, x.D / x.U - 1.0, 1.0)), 0.0)
        return np.where(repeated, np.exp(c["nu"] * log), 0.0), log


class _Saturated(NamedTuple):
    """An effective amount and its derivatives: by the amount itself, by the knee, by the scale."""

    value: Any
    by_value: Any
    by_knee: Any
    by_scale: Any


def _saturated(amount: Any, knee: Any, scale: Any) -> _Saturated:
    """Return ``amount`` up to ``knee``; what lies beyond saturates at ``scale`` times the knee."""
    beyond = np.real(amount) > np.real(knee)
    excess = np.where(beyond, amount / knee - 1.0, 0.0)
    part = np.exp(-excess / scale)
    gain = scale * (1.0 - part)
    return _Saturated(
        np.where(beyond, knee * (1.0 + gain), amount),
        np.where(beyond, part, 1.0),
        np.where(beyond, 1.0 + gain - part * (1.0 + excess), 0.0),
        np.where(beyond, knee * (1.0 - part * (1.0 + excess / scale)), 0.0),
    )


_SIMPLE: tuple[OuterLaw, ...] = (Chinchilla(), JointMoE(), Routed(), Kaplan(), Interaction())
_REPEATED: tuple[OuterLaw, ...] = (
    Repeated(Chinchilla()), Repeated(Chinchilla(), excess=True), Repeated(JointMoE()), Overfit(Chinchilla()),
    Overfit(JointMoE()),
)  # fmt: skip
OUTER_LAWS: dict[str, OuterLaw] = {law.name: law for law in (*_SIMPLE, *_REPEATED)}


def outer_law(law: OuterLaw | str) -> OuterLaw:
    """Return the outer law that is meant: by name, by an expression, or itself."""
    if isinstance(law, OuterLaw):
        return law
    if law in OUTER_LAWS:
        return OUTER_LAWS[law]
    if isinstance(law, str) and re.search(r"\b[ND]\b", law) and re.search(r"[*/()]", law):
        return Law.from_expression(law)
    hint = nearest(law, OUTER_LAWS) if isinstance(law, str) else ""
    raise InputError(
        f"outer law {shown(law)} is not known{hint}; choose from {', '.join(OUTER_LAWS)}, or write an expression "
        "like 'c + A/N**alpha + B/D**beta'"
    )
