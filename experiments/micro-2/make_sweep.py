"""Writes the sweeps of stages D and F with the rates of stage A's law: ``python make_sweep.py``.

One trunk has one rate for all its D: that of the longest. The law's exponent of E is too small to matter here, so the
rate is that of the geometric mean of E.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from results import trials

from loopscale.core.files import write_text
from loopscale.sweep.tune import fit_rates

HERE = Path(__file__).parent
SHIPPED = HERE.parents[1] / "src" / "loopscale" / "sweep" / "configs" / "micro-2.toml"
WIDTHS, EXPERTS, PASSES, LONGEST = (16, 24, 32), (1, 2, 4, 8), (1, 2, 3, 4), 600e3
HEAD = """# The second micro-sweep: a prelude, two looped layers and a coda, on the built-in corpus byte by byte.
#   loopscale sweep run micro-2 --workers 2
#   loopscale sweep export micro-2 --out runs.csv
# Stage D of docs/protocol.md; the rates are those of the law found in stage A.
[sweep]
name = "micro-2"
keep_models = true

"""
CHOSEN_HEAD = """# Stage F of docs/protocol.md: stage D with the recipe that stage C chose, a router for each pass.
#   loopscale sweep run chosen.toml --workers 2
# Cells with one pass or without experts are those of stage D; width 16, E = 8, R = 4 is in stage E.
[sweep]
name = "chosen"
keep_models = true

"""


def grid(
    size: str, experts: Sequence[int], recurrence: Sequence[int], seed: int | list[int] | None = None, more: str = ""
) -> str:
    """Return one grid of the sweep; ``more`` are further lines of it."""
    lines = ["[[grid]]", f'size = "{size}"', f"experts = {list(experts)}", f"recurrence = {list(recurrence)}"]
    lines += [] if seed is None else [f"seed = {seed}"]
    return "\n".join([*lines, 'tokens = ["60k", "200k", "600k"]', more])


def grids() -> str:
    """Return the grids in the order of their runs."""
    seeds: tuple[int | list[int], ...] = (0, 1, 2, [3, 4, 5], list(range(6, 12)), list(range(12, 20)))
    deciding = [grid("d16", (1, 8), (1, 4), each) for each in seeds]
    deciding += [grid("d16", (8,), (1, 4), list(more)) for more in (range(20, 28), range(28, 36))]
    whole = [grid(f"d{width}", EXPERTS, PASSES) for width in WIDTHS]
    beside_chosen = [
        grid(f"d{width}", *cells, 1) for width in WIDTHS for cells in ((EXPERTS, PASSES[:1]), (EXPERTS[:1], PASSES[1:]))
    ]
    ordered = [*deciding[:3], whole[0], deciding[3], *whole[1:], *deciding[4:], *beside_chosen]
    return (
        "\n# The cells that decide theta come first, seed by seed; the seeds of later amendments come last.\n"
        + "\n".join(ordered)
    )


def chosen_grids() -> str:
    """Return the grids of the chosen recipe, two seeds, without the cells that other stages have."""
    switch = '"model.pass_router" = true\n'
    cells = [("d16", EXPERTS[1:], PASSES[1:3]), ("d16", EXPERTS[1:3], PASSES[3:])]
    cells += [(f"d{width}", EXPERTS[1:], PASSES[1:]) for width in WIDTHS[1:]]
    return "\n" + "\n".join(grid(*each, [0, 1], switch) for each in cells)


def main() -> None:
    """Write the files."""
    law = fit_rates(trials())
    stage_a = (HERE / "rates.toml").read_text(encoding="utf-8")
    base = stage_a[stage_a.index("[base.model]") : stage_a.index("[sizes.")]
    sizes = "".join(f"[sizes.d{width}]\nwidth = {width}\nkv_heads = {width // 8}\n" for width in WIDTHS)
    middle = math.prod(EXPERTS) ** (1 / len(EXPERTS))
    overrides = [
        f'[[overrides]]\nwhen = {{ size = "d{width}", recurrence = {R} }}\n'
        f'set = {{ "optimizer.learning_rate" = {rate:.3g} }}\n'
        for width in WIDTHS
        for R in PASSES
        for rate in [law.at(width=width, recurrence=R, experts=middle, tokens=LONGEST)]
    ]
    settings = base + sizes + "\n" + "".join(overrides)
    write_text(SHIPPED, HEAD + settings + grids())
    write_text(HERE / "chosen.toml", CHOSEN_HEAD + settings + chosen_grids())
    print(law)


if __name__ == "__main__":
    main()
