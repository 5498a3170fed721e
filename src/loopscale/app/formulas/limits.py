"""Limits: when each holds, what a design needs of it, how much there is, and the sentences about it.

A limit is a function of a grid that returns None where the budget does not set it. Which fields of the budget it needs
is found by leaving them out, one at a time.
"""

from __future__ import annotations

from typing import Any

from loopscale.app.formulas.inputs import Symbol, grid_of_one
from loopscale.app.formulas.javascript import javascript, nested
from loopscale.planning import FIELDS, design, limits


def limit_formulas() -> str:
    """Return LIMITS, the hardest first, and STEPS: what is said of a pass or experts that gain too little."""
    rows = "".join(_row(limit) for limit in (*limits.FORMULAS, *_own_limits()))
    gains = {"gains": 0.5, "costs": -0.5, "neither": design.NO_GAIN / 2}
    steps = {name: design.too_little(Symbol.named("gain", gain)) for name, gain in gains.items()}
    return f"export const LIMITS = [\n{rows}];\nexport const STEPS = {steps!r};\n"


def _own_limits() -> list[Any]:
    """Return the limits that a field of the budget states by itself, as functions of a grid."""

    def of(name: str) -> Any:
        return lambda grid: next((limit for limit in limits.own_limits(grid) if limit.field == name), None)

    return [of(name) for name, field in FIELDS.items() if field.need is not None]


def _holds(limit: Any, **budget: Any) -> Any:
    """Return the limit under a budget, or under one that pays for less than a token; None where neither sets it."""
    return limit(grid_of_one(**budget)) or limit(grid_of_one(**budget, too_little=True))


def _row(limit: Any) -> str:
    # Some limits hold only where tokens follow from the compute: ``tokens`` is not set.
    without_tokens = _holds(limit, tokens=None)
    stated = limit(grid_of_one())
    found = without_tokens or stated
    state = {"tokens": None} if without_tokens else {}
    needed = [
        name
        for name, field in FIELDS.items()
        if field.default is None and name not in state and _holds(limit, **state, **{name: None}) is None
    ]
    forbidden = ["tokens"] if without_tokens and stated is None else []
    # Without the paper's compute, the same limit may be about the real one.
    without_flops = limit(grid_of_one(tokens=None, too_little=True, flops=None)) if without_tokens else None
    need = Symbol.named("need", 2.0)
    lines = [
        f"field: {found.field!r}",
        f"otherwise: {(without_flops or found).field!r}",
        f"needs: {needed!r}",
        f"forbids: {forbidden!r}",
        *(f"{name}: {getattr(found, name)!r}" for name in ("excluded", "empty", "closest", "unit")),
        f"need: {nested(found.need)}",
        f"cap: {nested(found.cap)}",
    ]
    if found.amount is not float:
        lines.append(f"amount: {javascript('', found.amount(need), 'need').rstrip()}")
    return "  {\n" + "".join(f"    {line},\n" for line in lines) + "  },\n"
