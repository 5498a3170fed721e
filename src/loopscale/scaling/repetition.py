"""Recurrence and repeated data together: stored weights overfit, passes do not.

Looping raises the effective parameters N_eff without adding weights that could memorise a repeated token. The law
therefore takes the two apart: N_eff in the size term, N_act in the overfitting term.
"""

from __future__ import annotations

from typing import Any

from loopscale.core.arrays import Values
from loopscale.scaling.extensions import EXTENSIONS, NU, Extension, O, Overfit
from loopscale.scaling.outer import OUTER_LAWS, Chinchilla, Gradient, Inputs, JointMoE, OuterLaw


class StoredOverfit(Overfit):
    """Any outer law plus O ((N_act / U) (D / U - 1))^nu.

    :class:`Overfit` has N_eff in the term, so that more passes overfit as more weights do. On public runs with 1 to 12
    passes and 1 and 10 epochs (docs/evidence.md) only the weights do.
    """

    def __init__(self, inner: OuterLaw) -> None:
        Extension.__init__(self, inner, "stored-overfit", "with overfitting of stored weights", (O, NU))

    def loss_at(self, c: Values, N: Any, x: Inputs) -> Any:
        return self.inner.loss(c, N, x.D, x.E) + c["O"] * self._power(c, x.N, x)[0]

    def gradient_at(self, c: Values, N: Any, x: Inputs) -> Gradient:
        loss, by, by_N = self.inner.gradient(c, N, x.D, x.E)
        power, log = self._power(c, x.N, x)
        return Gradient(loss + c["O"] * power, by | {"O": power, "nu": c["O"] * power * log}, by_N)

    def equation(self, c: Values) -> str:
        return f"{self.inner.equation(c)} + {c['O']:.4g} (N_act/U (D/U - 1))^{c['nu']:.4g}"


EXTENSIONS["stored-overfit"] = StoredOverfit
OUTER_LAWS.update({law.name: law for law in (StoredOverfit(Chinchilla()), StoredOverfit(JointMoE()))})
