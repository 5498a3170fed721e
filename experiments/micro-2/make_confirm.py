"""Writes stage C from the losses of stage B: ``python make_confirm.py``, once every run of stage B is in the table.

The two recipes of lowest screening loss and the plain loop at R = 4, each at its best rate, and R = 1 at the rate of
stage A's law, on four fresh seeds.
"""

from __future__ import annotations

from pathlib import Path

from results import shipped, trials

from loopscale.core.files import write_text
from loopscale.sweep.spec import read_sweep
from loopscale.sweep.tune import fit_rates

HERE = Path(__file__).parent
HEAD = """# Stage C of docs/protocol.md: the best recipes of the screening on fresh seeds.
#   loopscale sweep run confirm.toml --workers 2
[sweep]
name = "confirm"

"""


def grid(recurrence: int, rate: float, recipe: str = "plain") -> str:
    """Return the grid of a recipe over the fresh seeds."""
    name, _, value = recipe.partition("=")
    switch = f'"model.{name}" = {"true" if value == "True" else repr(value)}\n' if recipe != "plain" else ""
    return (
        f'\n[[grid]]\nsize = "d16"\nexperts = 4\nrecurrence = {recurrence}\nseed = [0, 1, 2, 3]\ntokens = "600k"\n'
        f'{switch}"optimizer.learning_rate" = {rate:g}\n'
    )


def main() -> None:
    """Choose and write."""
    rows = [row for row in shipped() if row.stage == "B"]
    planned = len(read_sweep(HERE / "recipes.toml").runs)
    if len(rows) < planned:
        raise SystemExit(f"{len(rows)} of {planned} runs of stage B are in the table; collect them all first")
    best: dict[str, tuple[float, float]] = {}
    for row in rows:
        best[row.recipe] = min(best.get(row.recipe, (row.loss, row.rate)), (row.loss, row.rate))
    recipes = sorted((name for name in best if name != "plain"), key=lambda name: best[name])[:2]
    law = fit_rates(trials())
    stage_b = (HERE / "recipes.toml").read_text(encoding="utf-8")
    settings = stage_b[stage_b.index("[base.model]") : stage_b.index("[[grid]]")].rstrip() + "\n"
    grids = [grid(4, best[name][1], name) for name in ("plain", *recipes)]
    grids.append(grid(1, float(f"{law.at(width=16, recurrence=1, experts=4, tokens=600e3):.3g}")))
    write_text(HERE / "confirm.toml", HEAD + settings + "".join(grids))


if __name__ == "__main__":
    main()
