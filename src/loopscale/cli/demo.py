"""``loopscale demo``."""

from __future__ import annotations

import click
import numpy as np

from loopscale.architecture import rung
from loopscale.cli.plan import print_plan
from loopscale.cli.profile import print_joint
from loopscale.cli.show import console
from loopscale.figures import draw_isoflop_over_recurrence, draw_joint_optimum, new_figure, save
from loopscale.files import make_folder
from loopscale.laws import published
from loopscale.plan import Budget, isoflop_over_recurrence, joint_optimum, ladder_space, like, plan


@click.command("demo")
@click.option("--out", type=click.Path(), default="out", show_default=True, help="Folder for plan, table and figure.")
def command(out: str) -> None:
    """Answer the paper's own questions from its law, and draw them.

    \b
    loopscale demo --out out
    """
    folder = make_folder(out)
    say = console()
    law, budget = published(), Budget(flops=5e21, memory=3e9, bits=4)
    say.rule("Which model fits a phone: 5e21 FLOPs of training, 3 GB of int4 weights")
    best = plan(budget, law=law)
    print_plan(best, 4)
    best.save(folder / "plan.json")

    say.rule("The best design as memory grows, at 5e21 FLOPs")
    print_joint("", joint_optimum(law, [1e9, 3e9, 1e10], budget))
    steps = joint_optimum(law, np.geomspace(0.17e9, 30e9, 400), budget)
    steps.save(folder / "joint.csv")

    say.rule("How often should a 0.3B model loop, to match a 0.6B one trained on 6T tokens")
    matched = like(rung("0.6B", experts=8), 6e12)
    print_plan(plan(Budget(flops=matched), ladder_space(["0.3B"], [8]), law), 2)

    figure, (left, right) = new_figure(columns=2, height=2.8)
    curves = isoflop_over_recurrence(law, [5e21], ladder_space(["0.3B", "1.0B"], [1, 8]))
    draw_isoflop_over_recurrence(curves, left)
    draw_joint_optimum(steps, right)
    save(figure, folder / "plan.png")
    say.print(f"Saved {folder / 'plan.png'}, {folder / 'plan.json'} and {folder / 'joint.csv'}.", highlight=False)
