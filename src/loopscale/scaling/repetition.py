"""Recurrence and repeated data together: stored weights overfit, passes do not.

Looping raises the effective parameters N_eff without adding weights that could memorise a repeated token. The law
therefore takes the two apart: N_eff in the size term, N_act in the overfitting term.
"""

from __future__ import annotations

from typing import Any

from loopscale.core.arrays import Values
from loopscale.scaling.extensions import EXTENSIONS, NU, R_D, Extension, O, Overfit, Repeated
from loopscale.scaling.outer import OUTER_LAWS, Chinchilla, Gradient, Inputs, JointMoE, OuterLaw


class StoredOverfit(Repeated):
    """Any outer law on repeated data plus O ((N_act / U) (D / U - 1))^nu: the weights overfit at any number of passes.

    ``Overfit`` has N_eff in the term, so that more passes overfit as more weights do. On public runs with 1 to 12
    passes and 1 and 10 epochs only the weights do (docs/evidence.md). A sweep of few epochs does not determine R_D:
    hold it at 15.4, as Muennighoff et al. measured.
    """

    def __init__(self, inner: OuterLaw) -> None:
        self.excess = False
        title = "with overfitting of weights"
        Extension.__init__(self, inner, "stored-overfit", title, (R_D, O, NU))

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


EXTENSIONS["stored-overfit"] = StoredOverfit
OUTER_LAWS.update({law.name: law for law in (StoredOverfit(Chinchilla()), StoredOverfit(JointMoE()))})
