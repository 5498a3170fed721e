"""An outer law for several groups of runs: exponents are shared, and each further group has its own offsets."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from loopscale.core.arrays import Values
from loopscale.core.errors import InputError
from loopscale.scaling import Coefficient, Inputs, OuterLaw, Role, Term
from loopscale.scaling.outer import Gradient

WIDEST = 10.0
"""A group's factor is searched from one over this to this."""


class Offsets(Enum):
    """In what groups differ, from the simplest form to the richest."""

    NONE = "one law for all"
    FACTOR = "own factor on the loss"
    FLOOR = "own irreducible loss"
    BOTH = "own irreducible loss and own factor on the rest"

    @property
    def floor(self) -> bool:
        """Whether each group has its own irreducible loss."""
        return self in (Offsets.FLOOR, Offsets.BOTH)

    @property
    def factor(self) -> bool:
        """Whether each group has its own factor."""
        return self in (Offsets.FACTOR, Offsets.BOTH)


class GroupedLaw(OuterLaw):
    """The loss of group g: c_g + f_g (L - c), where L is the law ``inner`` and c its irreducible loss.

    Group 0 has the coefficients of ``inner`` themselves. With a factor alone c_g is f_g c.
    """

    def __init__(self, inner: OuterLaw, groups: int, offsets: Offsets) -> None:
        floors = [term for term in inner.coefficients if term.term is Term.IRREDUCIBLE]
        if len(floors) != 1 or not any(term.role is Role.SCALE for term in inner.coefficients):
            raise InputError(
                f"groups cannot share the {inner.title}: it is no sum of terms and one irreducible loss",
                field="outer", remedy="choose chinchilla or joint-moe",
            )  # fmt: skip
        self.inner, self.groups, self.offsets, self.floor = inner, groups, offsets, floors[0]
        self.scales = tuple(term.name for term in inner.coefficients if term.role is Role.SCALE)
        own = list[Coefficient]()
        for g in range(1, groups):
            if offsets.floor:
                own.append(
                    Coefficient(
                        f"c_{g}", floors[0].lower, floors[0].upper, f"irreducible loss of group {g}", Term.IRREDUCIBLE
                    )
                )
            if offsets.factor:
                own.append(Coefficient(f"f_{g}", 1 / WIDEST, WIDEST, f"factor of group {g}", Term.SIZE, positive=True))
        self.coefficients = (*inner.coefficients, *own)
        self.name, self.title = f"{inner.name}, {offsets.value}", inner.title
        self.uses_experts, self.uses_tokens = inner.uses_experts, inner.uses_tokens
        self.uses_unique, self.rescales = inner.uses_unique, False

    def loss_at(self, c: Values, N: Any, x: Inputs) -> Any:
        loss, floor = self.inner.loss_at(c, N, x), c[self.floor.name]
        factor, own, _ = self._offsets(c, x)
        return factor * (loss - floor) + own

    def gradient_at(self, c: Values, N: Any, x: Inputs) -> Gradient:
        loss, by, by_N = self.inner.gradient_at(c, N, x)
        name = self.floor.name
        factor, own, members = self._offsets(c, x)
        above = loss - c[name]
        by = {term: factor * slope for term, slope in by.items()}
        # c moves the groups that have no floor of their own, by their factor where that is on the whole loss.
        shared = members[0] if self.offsets.floor else 1.0
        by[name] = shared * (factor if self.offsets is Offsets.FACTOR else 1.0) + np.zeros(np.shape(loss))
        for g in range(1, self.groups):
            if self.offsets.floor:
                by[f"c_{g}"] = members[g] + np.zeros(np.shape(loss))
            if self.offsets.factor:
                by[f"f_{g}"] = members[g] * (loss if self.offsets is Offsets.FACTOR else above)
        return Gradient(factor * above + own, by, factor * by_N)

    def of_group(self, c: Mapping[str, Any], g: int) -> dict[str, Any]:
        """Return the coefficients of ``inner`` that are the law of group ``g``."""
        values = {term.name: c[term.name] for term in self.inner.coefficients}
        if g == 0 or self.offsets is Offsets.NONE:
            return values
        if self.offsets.factor:
            values |= {name: values[name] * c[f"f_{g}"] for name in self.scales}
        if self.offsets.floor:
            return values | {self.floor.name: c[f"c_{g}"]}
        return values | {self.floor.name: values[self.floor.name] * c[f"f_{g}"]}

    def typical(self, loss: Any, N: Any, D: Any, E: Any) -> dict[str, float]:
        base = self.inner.typical(loss, N, D, E)
        own = {
            term.name: base[self.floor.name] if term.name.startswith("c_") else 1.0
            for term in self.coefficients[len(self.inner.coefficients) :]
        }
        return base | own

    def problem(self, c: Mapping[str, float]) -> str | None:
        return self.inner.problem(c)

    def _offsets(self, c: Values, x: Inputs) -> tuple[Any, Any, list[Any]]:
        """Return each row's factor and irreducible loss, and which rows belong to each group."""
        members = [np.asarray(x.group == g, dtype=float) for g in range(self.groups)]
        factor: Any = 1.0
        if self.offsets.factor:
            factor = members[0] + sum(c[f"f_{g}"] * members[g] for g in range(1, self.groups))
        floor = c[self.floor.name]
        if self.offsets is Offsets.FACTOR:
            return factor, factor * floor, members
        if self.offsets.floor:
            floor = floor * members[0] + sum(c[f"c_{g}"] * members[g] for g in range(1, self.groups))
        return factor, floor, members

    def loss(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        """Return the loss of group 0."""
        return self.inner.loss(c, N, D, E)

    def gradient(self, c: Values, N: Any, D: Any, E: Any) -> Gradient:
        return self.inner.gradient(c, N, D, E)

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        raise NotImplementedError("the law of one group can be rescaled")

    def token_slope(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        return self.inner.token_slope(c, N, D, E)

    def equation(self, c: Values) -> str:
        return self.inner.equation(c)
