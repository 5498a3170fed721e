"""Limits: when each holds, what a design needs of it, how much there is, and the sentences about it.

A limit is a function of a grid that returns None where the budget does not set it. Which fields of the budget it needs
is found by leaving them out, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loopscale.app.formulas.inputs import Symbol, grid_of_one
from loopscale.app.formulas.javascript import javascript, nested
from loopscale.planning import FIELDS, design, limits


def limit_formulas() -> str:
    """Return LIMITS, the hardest first, and STEPS: what is said of a pass or experts that gain too little."""
    own = [_own_limit(name) for name, field in FIELDS.items() if field.need is not None]
    rows = "".join(_row(formula) for formula in (*limits.FORMULAS, *own))
    gains = {"gains": 0.5, "costs": -0.5, "neither": design.NO_GAIN / 2}
    steps = {name: design.too_little(Symbol.named("gain", gain)) for name, gain in gains.items()}
    return f"export const LIMITS = [\n{rows}];\nexport const STEPS = {steps!r};\n"


def _own_limit(name: str) -> Callable[[Any], Any]:
    """Return the limit that a field of the budget states by itself, as a function of a grid."""
    return lambda grid: next((limit for limit in limits.own_limits(grid) if limit.field == name), None)


def _limit(formula: Callable[[Any], Any], **budget: Any) -> Any:
    """Return the limit under a budget, or under one that pays for less than a token; None where neither sets it."""
    return formula(grid_of_one(**budget)) or formula(grid_of_one(**budget, too_little=True))


def _row(formula: Callable[[Any], Any]) -> str:
    """Return one limit as an object: its field, when it holds, its sentences, and its need and cap as functions."""
    with_tokens, without_tokens = formula(grid_of_one()), _limit(formula, tokens=None)
    limit = without_tokens or with_tokens
    # Some limits hold only where tokens follow from the compute; others hold whether or not they are stated.
    state = {"tokens": None} if without_tokens else {}
    needs = [
        name
        for name, field in FIELDS.items()
        if field.default is None and name not in state and _limit(formula, **state, **{name: None}) is None
    ]
    # Without the paper's compute, the same limit may be about the real one.
    without_flops = formula(grid_of_one(tokens=None, too_little=True, flops=None)) if without_tokens else None
    lines = [
        f"field: {limit.field!r}",
        f"otherwise: {(without_flops or limit).field!r}",
        f"needs: {needs!r}",
        f"forbids: {['tokens'] if with_tokens is None else []!r}",
        *(f"{name}: {getattr(limit, name)!r}" for name in ("excluded", "empty", "closest", "unit")),
        f"need: {nested(limit.need)}",
        f"cap: {nested(limit.cap)}",
    ]
    if limit.amount is not float:
        lines.append(f"amount: {javascript('', limit.amount(Symbol.named('need', 2.0)), 'need').rstrip()}")
    return "  {\n" + "".join(f"    {line},\n" for line in lines) + "  },\n"
