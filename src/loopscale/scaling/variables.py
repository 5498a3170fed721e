"""What a law cannot answer: variables that it has no term for, and anything where its coefficients are degenerate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from loopscale.core.errors import InputError
from loopscale.scaling.law import ScalingLaw


class WithheldError(InputError):
    """An answer that is given only where the user allows it by an argument."""

    def __init__(self, problem: str, overrides: Sequence[str], remedy: str) -> None:
        self.overrides = tuple(overrides)
        """The arguments that allow the answer all the same."""
        options = " and ".join(f"`{name}`" for name in self.overrides)
        super().__init__(problem, remedy=f"{remedy}, or allow the answer with {options}")


REFIT = "fit it to more data or a simpler form"
"""What to do about a degenerate law."""


def why_degenerate(law: ScalingLaw) -> str:
    """Say why a law is degenerate."""
    return f"law {law.name} is degenerate: {'; '.join(law.degenerate)}"


def fixed_experts(law: ScalingLaw) -> float | None:
    """Return the only E that a law answers for: the one that it was fitted at; None for a law with experts."""
    return None if law.outer.uses_experts else _only(law.fitted_range.experts)


def fixed_recurrence(law: ScalingLaw) -> int | None:
    """Return the only R that a law answers for: the one that it was fitted at; None for a law with recurrence."""
    return None if law.mapping.loops else int(_only(law.fitted_range.recurrence))


def default_variables(law: ScalingLaw) -> tuple[float, float]:
    """Return E and R where the user states neither: those that a law without them was fitted at, otherwise 1."""
    return fixed_experts(law) or 1.0, fixed_recurrence(law) or 1.0


def _only(span: tuple[float | None, float | None]) -> float:
    low, high = span
    return low if low is not None and low == high else 1.0


def check_variables(law: ScalingLaw, experts: ArrayLike, recurrences: ArrayLike) -> None:
    """Refuse experts or passes that vary where the law has no term for them."""
    for field, symbol, only, values in (
        ("experts", "E", fixed_experts(law), experts),
        ("recurrence", "R", fixed_recurrence(law), recurrences),
    ):
        if only is None:
            continue
        others = np.unique(np.asarray(values, float))
        others = others[others != only]
        if len(others):
            raise InputError(
                f"law {law.name} has no term for {symbol}, so it cannot answer for {symbol} = {others[0]:g}",
                field=field,
                remedy=f"ask for {symbol} = {only:g}, or choose a law with it",
            )
