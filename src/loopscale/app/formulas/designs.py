"""Designs: the counts of the ladder's models, what they cost to run, and the tokens that a budget pays for."""

from __future__ import annotations

from typing import Any

from loopscale.app.formulas.inputs import Grid, Symbol, SymbolicObject, budget_of, grid_of_one, planning_grid, symbol
from loopscale.app.formulas.javascript import function, javascript, nested, table
from loopscale.architecture import Architecture, at_width
from loopscale.architecture.ladder import between_rungs
from loopscale.planning.design import Design
from loopscale.planning.recipes import CAPACITY, CONTEXT, padding

COUNTS = ("active", "loop", "total", "embedding", "parameters", "layers", "head")
"""What a design takes from its architecture, whatever its passes."""
_design: Any = Design


def models() -> dict[str, Architecture]:
    """Return the ladder's models at a symbolic width: dense ones, mixtures, and those between the rungs."""
    width, E = symbol("x.width"), symbol("x.E")
    return {
        "dense": at_width(width, experts=1),
        "mixture": at_width(width, experts=E),
        "between": between_rungs(width, E),
    }


def design_formulas() -> str:
    """Return ARCHITECTURES by kind of model, COSTS, and the few facts of a design that follow from others."""
    used, there = Grid.built_SK.func(grid_of_one())
    d = SymbolicObject("design")
    return "".join(
        [
            _architectures(),
            table("COSTS", {name: javascript("", cost, "x, b") for name, cost in _costs().items()}),
            table("EXPERTS", {"used": javascript("", used), "there": javascript("", there)}),
            function("effectiveParameters", _design.effective_parameters.fget(d), "design"),
        ]
    )


def _architectures() -> str:
    rows = ""
    for kind, model in models().items():
        functions = "".join(f"    {name}: {nested(value)},\n" for name, value in _facts(model).items())
        rows += f"  {kind}: {{\n{functions}  }},\n"
    return f"export const ARCHITECTURES = {{\n{rows}}};\nexport const COUNTS = {list(COUNTS)!r};\n"


def _facts(model: Architecture) -> dict[str, Any]:
    """Return the counts of a model, the FLOPs of a training token as they really run, and the bytes of its KV cache."""
    R, b = symbol("x.R"), budget_of()
    cache = {"context": b.context, "bits": b.kv_bits}
    real = {"context": CONTEXT, "padding": padding(model, CAPACITY)}
    return {
        **{name: getattr(model, name) for name in COUNTS if name != "head"},
        "head": model.vocabulary * model.width,
        "real": model.real_train_flops_per_token(R, **real),
        "supervised": model.real_train_flops_per_token(R, per_loop_supervision=True, **real),
        "kv_bytes": model.kv_bytes(
            R, batch=b.batch, kept_passes=b.kept_passes, kept_window=b.kept_window, **cache
        ),
        "kv_of_one": model.kv_bytes(R, batch=1, kept_passes=None, **cache),
    }  # fmt: skip


def _costs() -> dict[str, Any]:
    one, shared = grid_of_one(kept_passes=None), grid_of_one(kept_passes=Symbol.named("b.kept_passes"))
    budget = grid_of_one(tokens=None).budget  # stated tokens would be the answer
    return {
        "unrolled": one.space.unrolled(),
        "tokens": planning_grid.matched_tokens(one.space, one.space.recurrences, budget, one.flops),
        "weight_bytes": one.weight_bytes_SK,
        "memory": one.memory_SKP,
        "inference_flops": one.inference_SKP,
        "bytes_read": one.bytes_read_SKP,
        "bytes_read_shared": shared.bytes_read_SKP,
        "train_flops": one.train_flops_FSKP,
        "real_flops": one.real_flops_FSKP,
    }
