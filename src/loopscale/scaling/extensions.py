"""Further outer laws: Kaplan's, an interaction of N and D, and repeated data on top of any outer law.

A new law is one class here, its entry in ``OUTER_LAWS`` at the end, and its test.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from loopscale.core.arrays import Values
from loopscale.scaling.forms import (
    ALPHA,
    BETA,
    OUTER_LAWS,
    A,
    B,
    C,
    Chinchilla,
    Coefficient,
    Gradient,
    Inputs,
    JointMoE,
    OuterLaw,
    Role,
    Term,
)


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


_LAWS = (
    Kaplan(), Interaction(), Repeated(Chinchilla()), Repeated(Chinchilla(), excess=True), Repeated(JointMoE()),
    Overfit(Chinchilla()), Overfit(JointMoE()),
)  # fmt: skip
OUTER_LAWS.update({law.name: law for law in _LAWS})
