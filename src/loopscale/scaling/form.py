"""A law without its coefficients: an outer law, by name or written out, on top of a recurrence mapping."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray, Values, in_place
from loopscale.core.errors import InputError, nearest, shown
from loopscale.scaling.coefficients import Coefficient
from loopscale.scaling.expressions import Expression
from loopscale.scaling.extensions import EXTENSIONS
from loopscale.scaling.mappings import RecurrenceMapping
from loopscale.scaling.outer import OUTER_LAWS, Inputs, OuterLaw
from loopscale.scaling.points import Points, Units


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
        N = effective(x.N, x.loop, self.mapping.gain(c, x.R, x.m)) if self.mapping.loops else x.N
        return self.outer.loss_at(c, N, x)

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


def effective(active: Any, loop: Any, gain: Any) -> Any:
    """Return N_eff = N_act + g_eff N_loop: the capacity that a gain of ``gain`` loop blocks is worth."""
    return in_place(np.add, gain * loop, active)


def inputs(form: Form, points: Points, units: Units) -> Inputs:
    """Return what ``form`` is evaluated on at ``points``, in the units of its coefficients."""
    return Inputs(
        N=points.active / units.parameters,
        D=points.tokens / units.tokens,
        E=points.experts,
        R=points.recurrence,
        m=active_ratio(form.mapping, points),
        loop=points.loop_block / units.parameters if form.mapping.loops else 0.0,
        U=points.unique / units.tokens if form.outer.uses_unique else None,
    )


def active_ratio(recurrence: RecurrenceMapping, points: Points) -> FloatArray:
    """Return m at ``points``; 1 for a mapping that does not depend on it, which then needs no N_total."""
    return points.m if recurrence.needs_ratio else np.float64(1.0)  # type: ignore[return-value]


def outer_law(law: OuterLaw | str | Mapping[str, Any]) -> OuterLaw:
    """Return the outer law that is meant: itself, by name, by an expression, or as ``OuterLaw.saved`` gives it."""
    if isinstance(law, OuterLaw):
        return law
    hint = ""
    if isinstance(law, Mapping):
        expression, suffix = Expression(law["expression"], law.get("bounds")), law.get("extension")
        if suffix is None:
            return expression
        if suffix in EXTENSIONS:
            return EXTENSIONS[suffix](expression)
        raise InputError(
            f"{shown(suffix)} is not known{nearest(suffix, EXTENSIONS)}",
            field="extension", remedy=f"choose from {', '.join(EXTENSIONS)}",
        )  # fmt: skip
    if isinstance(law, str):
        if law in OUTER_LAWS:
            return OUTER_LAWS[law]
        if re.search(r"\b[ND]\b", law) and re.search(r"[*/()]", law):
            return Expression(law)
        base, _, suffix = law.rpartition("+")
        if base in OUTER_LAWS and suffix in EXTENSIONS:
            return EXTENSIONS[suffix](OUTER_LAWS[base])
        hint = nearest(law, OUTER_LAWS)
    raise InputError(
        f"outer law {shown(law)} is not known{hint}; choose from {', '.join(OUTER_LAWS)}, or write an expression "
        "like 'c + A/N**alpha + B/D**beta'"
    )
