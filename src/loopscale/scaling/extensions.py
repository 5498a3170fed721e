"""Outer laws on repeated data, each on top of any other outer law.

A new extension is one class here, and its test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from loopscale.core.arrays import Values
from loopscale.core.errors import InputError
from loopscale.scaling.coefficients import Coefficient, Role, Term
from loopscale.scaling.outer import OUTER_LAWS, Chinchilla, Gradient, Inputs, JointMoE, OuterLaw

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
O = Coefficient(  # noqa: E741
    "O", 1e-9, 1e2, "size of the overfitting term", Term.REPETITION, Role.SCALE, typical=0.01, positive=True
)
NU = Coefficient("nu", 0.05, 4.0, "exponent of the overfitting term", Term.REPETITION, Role.SHAPE, 0.6, positive=True)


EXTENSIONS: dict[str, type[Extension]] = {}
"""By suffix: ``outer_law("kaplan+repetition")`` extends any outer law. ``OUTER_LAWS`` lists the usual ones."""


class Extension(OuterLaw):
    """Another outer law, ``inner``, with further coefficients for tokens that are seen several times.

    Its name is that of the other law, a plus sign and ``suffix``: ``chinchilla+repetition``. Without repeated tokens
    it is the other law. A subclass that states its ``suffix`` joins ``EXTENSIONS``.
    """

    uses_unique = True
    suffix: ClassVar[str]
    addition: ClassVar[str]
    """What texts add to the title of the other law."""
    own: ClassVar[tuple[Coefficient, ...]]

    def __init_subclass__(cls) -> None:
        EXTENSIONS[cls.suffix] = cls

    def __init__(self, inner: OuterLaw) -> None:
        if inner.uses_unique:
            raise InputError(f"{inner.title} depends on unique tokens already; it cannot be extended by {self.suffix}")
        self.inner = inner
        self.name, self.title = f"{inner.name}+{self.suffix}", f"{inner.title} {self.addition}"
        self.coefficients = (*inner.coefficients, *self.own)
        self.uses_experts, self.uses_tokens, self.rescales = inner.uses_experts, inner.uses_tokens, inner.rescales

    def loss(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        """Return the loss where every token is seen once."""
        return self.inner.loss(c, N, D, E)

    def gradient(self, c: Values, N: Any, D: Any, E: Any) -> Gradient:
        loss, by, by_N = self.inner.gradient(c, N, D, E)
        return Gradient(loss, by | {term.name: np.zeros(np.shape(loss)) for term in self.own}, by_N)

    def token_slope(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        return self.inner.token_slope(c, N, D, E)

    def problem(self, c: Mapping[str, float]) -> str | None:
        return self.inner.problem(c)

    def at_one_expert(self, c: Values) -> tuple[OuterLaw, dict[str, Any]]:
        inner, values = self.inner.at_one_expert(c)
        return type(self)(inner), values | {term.name: c[term.name] for term in self.own}

    def typical(self, loss: Any, N: Any, D: Any, E: Any) -> dict[str, float]:
        own = {term.name: term.typical for term in self.own if term.typical is not None}
        return self.inner.typical(loss, N, D, E) | own

    def saved(self) -> str | dict[str, Any]:
        inner = self.inner.saved()
        return self.name if isinstance(inner, str) else inner | {"extension": self.suffix}


class Repeated(Extension):
    """Any outer law on data that are seen several times (Muennighoff et al. 2023).

    With U unique tokens, D trained ones are worth D' = U + U R_D (1 - exp(-(D / U - 1) / R_D)).
    """

    suffix, addition = "repetition", "with repeated data"
    own: ClassVar[tuple[Coefficient, ...]] = (R_D,)

    def loss_at(self, c: Values, N: Any, x: Inputs) -> Any:
        return self.inner.loss(c, N, _saturated(x.D, x.U, c["R_D"]).value, x.E)

    def gradient_at(self, c: Values, N: Any, x: Inputs) -> Gradient:
        data = _saturated(x.D, x.U, c["R_D"])
        loss, by, by_N = self.inner.gradient(c, N, data.value, x.E)
        by["R_D"] = self.inner.token_slope(c, N, data.value, x.E) * data.by_scale
        return Gradient(loss, by, by_N)

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        return self.inner.rescaled(c, parameters, tokens)

    def equation(self, c: Values) -> str:
        data = f"D = U + {c['R_D']:.4g} U (1 - exp(-(D/U - 1) / {c['R_D']:.4g}))"
        return f"{self.inner.equation(c)}, {data}"


class Excess(Repeated):
    """Repeated data where parameters beyond N_U U count for less too, in the same way.

    The authors take N_U from the compute-optimal model of U tokens.
    """

    suffix, addition, own = "excess", "with repeated data and excess parameters", (R_D, R_N, N_U)

    def loss_at(self, c: Values, N: Any, x: Inputs) -> Any:
        return super().loss_at(c, _saturated(N, c["N_U"] * x.U, c["R_N"]).value, x)

    def gradient_at(self, c: Values, N: Any, x: Inputs) -> Gradient:
        size = _saturated(N, c["N_U"] * x.U, c["R_N"])
        loss, by, by_N = super().gradient_at(c, size.value, x)
        by |= {"R_N": by_N * size.by_scale, "N_U": by_N * size.by_knee * x.U}
        return Gradient(loss, by, by_N * size.by_value)

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        return super().rescaled(c, parameters, tokens) | {"N_U": c["N_U"] * tokens / parameters}


class Overfit(Extension):
    """Any outer law plus O ((N / U) (D / U - 1))^nu: loss that rises again when a large model repeats few tokens.

    The term is zero while every token is new. Repeated data lose their value in ``Repeated``, but never harm.
    """

    suffix, addition, own = "overfit", "with overfitting", (O, NU)

    def loss_at(self, c: Values, N: Any, x: Inputs) -> Any:
        return self.inner.loss(c, N, x.D, x.E) + c["O"] * self.power(c, N, x)[0]

    def gradient_at(self, c: Values, N: Any, x: Inputs) -> Gradient:
        loss, by, by_N = self.inner.gradient(c, N, x.D, x.E)
        power, log = self.power(c, N, x)
        by |= {"O": power, "nu": c["O"] * power * log}
        return Gradient(loss + c["O"] * power, by, by_N + c["O"] * c["nu"] * power / N)

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        return self.inner.rescaled(c, parameters, tokens) | {"O": c["O"] * (parameters / tokens) ** c["nu"]}

    def equation(self, c: Values) -> str:
        return f"{self.inner.equation(c)} + {c['O']:.4g} (N/U (D/U - 1))^{c['nu']:.4g}"

    @staticmethod
    def power(c: Values, N: Any, x: Inputs) -> tuple[Any, Any]:
        """Return ((N / U) (D / U - 1))^nu and the logarithm of its base; both zero where no token is repeated."""
        repeated = np.real(x.D) > np.real(x.U)
        log = np.where(repeated, np.log(N / x.U) + np.log(np.where(repeated, x.D / x.U - 1.0, 1.0)), 0.0)
        return np.where(repeated, np.exp(c["nu"] * log), 0.0), log


class StoredOverfit(Repeated):
    """Any outer law on repeated data plus O ((N_act / U) (D / U - 1))^nu: the weights overfit at any number of passes.

    Looping raises the effective parameters N_eff without weights that could memorise a repeated token, so N_eff stands
    in the size term and N_act in the overfitting term. ``Overfit`` has N_eff there, so that more passes overfit as more
    weights do. On public runs with 1 to 12 passes and 1 and 10 epochs only the weights do (docs/evidence.md). A sweep
    of few epochs does not determine R_D: hold it at 15.4, as Muennighoff et al. measured.
    """

    suffix, addition, own = "stored-overfit", "with overfitting of weights", (R_D, O, NU)

    def loss_at(self, c: Values, N: Any, x: Inputs) -> Any:
        return super().loss_at(c, N, x) + c["O"] * Overfit.power(c, x.N, x)[0]

    def gradient_at(self, c: Values, N: Any, x: Inputs) -> Gradient:
        loss, by, by_N = super().gradient_at(c, N, x)
        power, log = Overfit.power(c, x.N, x)
        return Gradient(loss + c["O"] * power, by | {"O": power, "nu": c["O"] * power * log}, by_N)

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        return super().rescaled(c, parameters, tokens) | {"O": c["O"] * (parameters / tokens) ** c["nu"]}

    def equation(self, c: Values) -> str:
        return f"{super().equation(c)}, + {c['O']:.4g} (N_act/U (D/U - 1))^{c['nu']:.4g}"


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


_LISTED = (
    Repeated(Chinchilla()), Excess(Chinchilla()), Repeated(JointMoE()), Overfit(Chinchilla()), Overfit(JointMoE()),
    StoredOverfit(Chinchilla()), StoredOverfit(JointMoE()),
)  # fmt: skip
OUTER_LAWS.update({law.name: law for law in _LISTED})
