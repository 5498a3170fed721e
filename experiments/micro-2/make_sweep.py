"""Writes the sweep of stage D with the rates of stage A's law: ``python make_sweep.py``.

One trunk has one rate for all its D: that of the longest. The law's exponent of E is too small to matter here, so the
rate is that of the geometric mean of E.
"""

from __future__ import annotations

import math
from pathlib import Path

from results import trials

from loopscale.files import write_text
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
GRIDS = """
# The cells that decide theta come first, seed by seed.
[[grid]]
size = "d16"
experts = [1, 8]
recurrence = [1, 4]
seed = 0
tokens = ["60k", "200k", "600k"]

[[grid]]
size = "d16"
experts = [1, 8]
recurrence = [1, 4]
seed = 1
tokens = ["60k", "200k", "600k"]

[[grid]]
size = "d16"
experts = [1, 8]
recurrence = [1, 4]
seed = 2
tokens = ["60k", "200k", "600k"]

[[grid]]
size = "d16"
experts = [1, 2, 4, 8]
recurrence = [1, 2, 3, 4]
tokens = ["60k", "200k", "600k"]

[[grid]]
size = "d16"
experts = [1, 8]
recurrence = [1, 4]
seed = [3, 4, 5]
tokens = ["60k", "200k", "600k"]

[[grid]]
size = "d24"
experts = [1, 2, 4, 8]
recurrence = [1, 2, 3, 4]
tokens = ["60k", "200k", "600k"]

[[grid]]
size = "d32"
experts = [1, 2, 4, 8]
recurrence = [1, 2, 3, 4]
tokens = ["60k", "200k", "600k"]
"""


def main() -> None:
    """Write the file."""
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
    write_text(SHIPPED, HEAD + base + sizes + "\n" + "".join(overrides) + GRIDS)
    print(law)


if __name__ == "__main__":
    main()
