"""What formulas are called with instead of numbers: one design ``x`` and the budget ``b``, with example values."""

from __future__ import annotations

from typing import Any

from loopscale.app.formulas.symbols import Symbol as _Symbol
from loopscale.app.formulas.symbols import SymbolicObject as _SymbolicObject
from loopscale.architecture import ladder_space
from loopscale.planning import FIELDS
from loopscale.planning import grid as _planning_grid
from loopscale.scaling import costs

# Symbols stand where the functions expect numbers and arrays, which no type checker allows.
SymbolicObject: Any = _SymbolicObject
Symbol: Any = _Symbol
planning_grid: Any = _planning_grid
Grid: Any = _planning_grid.Grid
Rule: Any = _planning_grid.Rule

DESIGN = {
    "width": 1280.0, "E": 8.0, "R": 3.0, "D": 300.0, "U": 100.0, "N": 1.0, "tail": 0.3, "active": 8e8, "loop": 6e8,
    "total": 4e9, "embedding": 3e8, "devices": 8.0, "sequences": 384.0, "tokens": 3e11, "real": 9e9, "head": 3e8,
}  # fmt: skip
"""Values for which formulas take their general path: a looped mixture of experts that repeats its tokens."""
BUDGET = {name: field.start for name, field in FIELDS.items()}
"""The budget with every field set: to the value at which the page's control starts."""


def design(**fields: Any) -> Any:
    """Return the symbols of one design; ``fields`` replaces some of them, or adds what is no symbol."""
    return SymbolicObject("x", DESIGN, **fields)


def budget_of(**fields: Any) -> Any:
    """Return the symbols of a budget; ``fields`` replaces some of them, by None for one that is not set."""
    return SymbolicObject("b", BUDGET, **fields)


def symbol(path: str) -> Any:
    """Return the symbol that reads a field of a design, like ``x.width``, with its example."""
    return Symbol.named(path, DESIGN[path.rpartition(".")[2]])


def grid_of_one(*, too_little: bool = False, **budget: Any) -> Any:
    """Return the grid of one symbolic design under a symbolic budget.

    ``budget`` sets fields of the budget: None for one that is not set. With ``too_little``, the example is a budget
    that pays for less than one token. What a real space looks up by model is a field of the design here, which
    ``designs.py`` traces from the architecture.
    """
    x = SymbolicObject("x", DESIGN | ({"tokens": 0.5} if too_little else {}))
    space = design(
        models=(), shape=(), kind="ladder", experts=x.E, active_experts=ladder_space(["1.0B"]).active_experts,
        recurrences=x.R, overheads={},
        unrolled=lambda *_: costs.unrolled(x.active, x.loop, x.R),
        output_head=lambda: x.head, real_train_flops=lambda *_, **__: x.real,
        kv_bytes=lambda **options: x.kv_bytes if "kept_window" in options else x.kv_of_one,
    )  # fmt: skip
    grid = Grid(
        law=SymbolicObject("law"), space=space, budget=budget_of(**budget), eps=0.0, rule=Rule.PAPER,
        flops=Symbol.named("b.flops", BUDGET["flops"]), tokens_FSKP=x.tokens, loss_ZFSKP=x.loss,
        pass_gain_ZFSKP=x.pass_gain, expert_gain_ZFSKP=x.expert_gain,
    )  # fmt: skip
    if "kept_passes" not in budget:
        # How many bytes are read depends on whether passes share a cache: an input, but where that is traced itself.
        grid.__dict__["bytes_read_SKP"] = x.bytes_per_token
    return grid
