"""``loopscale demo``: the whole loop on built-in defaults."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click
import numpy as np

from loopscale.architecture import rung
from loopscale.cli import console, print_table
from loopscale.cli.plan import print_plan
from loopscale.cli.profile import print_joint
from loopscale.errors import check_extra
from loopscale.figures import draw_isoflop_over_recurrence, draw_joint_optimum
from loopscale.figures.capacity import draw_loss_over_recurrence, loss_over_recurrence
from loopscale.figures.reports.parts import add_picture
from loopscale.figures.style import Panel, Picture, save
from loopscale.files import make_folder, write_text
from loopscale.fit import Fit, Observations, fit
from loopscale.fit.data.public import load_micro
from loopscale.laws import published
from loopscale.plan import Budget, Plan, flops_of, isoflop_over_recurrence, joint_optimum, ladder_space, plan
from loopscale.plan.text import legend, mark
from loopscale.report import Report
from loopscale.tables import Table

COLUMNS = ("E", "R", "tokens", "loss", "shipped", "law", "pass gain")


@click.command("demo")
@click.option("--out", type=click.Path(), default="out", show_default=True, help="Folder for everything it makes.")
@click.option("--plan-only", is_flag=True, help="Stop before anything is trained: answers from the paper's law alone.")
@click.pass_context
def demo_command(ctx: click.Context, out: str, plan_only: bool) -> None:
    """Plan with the paper's law, train six tiny looped MoEs, fit a law to measured runs, and report.

    Takes two or three minutes on two cores. A demo that was stopped goes on where it was.

    \b
    loopscale demo --out out
    loopscale demo --out out --plan-only
    """
    if not plan_only:
        check_extra("train", "loopscale demo (without --plan-only)")
        check_extra("corpus", "loopscale demo (without --plan-only)")
    folder = make_folder(out)
    chosen, panels = _plan(folder)
    if plan_only:
        return
    seen = _train(ctx, folder)
    law = _fit()
    rows = _compare(seen, law)
    _report(folder, chosen, panels, seen, law, rows)


def _plan(folder: Path) -> tuple[Plan, list[Panel]]:
    """Answer the paper's own questions from its law."""
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
    matched = flops_of(rung("0.6B", experts=8), 6e12)
    print_plan(plan(Budget(flops=matched), ladder_space(["0.3B"], [8]), law), 2)
    curves = isoflop_over_recurrence(law, [5e21], ladder_space(["0.3B", "1.0B"], [1, 8]))
    panels = [Panel(curves, draw_isoflop_over_recurrence), Panel(steps, draw_joint_optimum)]
    save(Picture("plan", "", tuple(panels), 2.8).figure(columns=2), folder / "plan.png")
    say.print(f"Saved {folder / 'plan.png'}, {folder / 'plan.json'} and {folder / 'joint.csv'}.", highlight=False)
    return best, panels


def _train(ctx: click.Context, folder: Path) -> Observations:
    """Train the demo's runs, or go on with them, and return what they reached."""
    from loopscale.cli.sweep import run as run_sweep
    from loopscale.sweep.launch import observations
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.store import Store

    console().rule("Six looped MoEs of one layer, trained now on the State of the Union addresses")
    path = folder / "demo.toml"
    write_text(path, files("loopscale.cli").joinpath("demo.toml").read_text(encoding="utf-8"))
    ctx.invoke(run_sweep, file=str(path), on="local")
    sweep = read_sweep(path)
    with Store(sweep.results) as store:
        seen, _ = observations(sweep, store)
    seen.to_csv(folder / "runs.csv")
    return seen


def _fit() -> Fit:
    """Fit the bounded law to the measured micro-sweep that ships with loopscale."""
    console().rule("A law fitted to the micro-sweep that ships with loopscale (measured)")
    found = fit(load_micro(), outer="joint-moe", mapping="bounded", resamples=0)
    c = found.law.coefficients
    console().print(
        f"{len(found.observations)} losses of {len(found.observations.runs)} runs, RMSE {found.law.rmse:.4f} nats: "
        f"looping is worth at most {c['kappa1']:.2f} of the loop block's weights, with a scale of {c['kappa2']:.2f} "
        "passes",
        highlight=False,
    )
    return found


def _compare(seen: Observations, law: Fit) -> list[tuple[str, ...]]:
    """Print the trained runs beside the shipped ones and the law."""
    p, shipped = seen.points, _shipped()
    predicted, outside = law.law(p), law.law.extrapolated(p)
    rows: list[tuple[str, ...]] = []
    base = {E: loss for E, R, loss in zip(p.experts, p.recurrence, seen.loss, strict=True) if R == 1}
    for i in np.lexsort((p.recurrence, p.experts)):
        before = shipped.get((p.active[i], p.experts[i], p.recurrence[i], p.tokens[i]))
        rows.append(
            (f"{p.experts[i]:g}", f"{p.recurrence[i]:g}", f"{p.tokens[i]:,.0f}", f"{seen.loss[i]:.4f}",
             "" if before is None else f"{before:.4f}",
             mark(f"{predicted[i]:.4f}", any(each[i] for each in outside.values())),
             f"{base[p.experts[i]] - seen.loss[i]:+.4f}")
        )  # fmt: skip
    print_table("Validation loss, nats per byte: trained now, as shipped, and as the law has it", COLUMNS, rows)
    if note := legend(axis for axis, each in outside.items() if each.any()):
        console().print(note, style="dim", highlight=False)
    return rows


def _shipped() -> dict[tuple[float, ...], float]:
    micro = load_micro("micro-all")
    p = micro.points
    first = np.array([run.endswith("-s0") for run in micro.run])
    keys = zip(p.active[first], p.experts[first], p.recurrence[first], p.tokens[first], strict=True)
    return dict(zip(keys, micro.loss[first].tolist(), strict=True))


def _report(
    folder: Path, chosen: Plan, panels: list[Panel], seen: Observations, law: Fit, rows: list[tuple[str, ...]]
) -> None:
    """Write the page that shows all of it."""
    report = Report("Looped MoEs: planned, trained, fitted")
    report.question("Which looped MoE should one train, and does looping pay on a machine like this one?")
    gains = {row[0]: row[-1] for row in rows if row[1] == "4"}
    report.answer(
        f"The paper's law chooses {chosen.choice.label} for 5e21 FLOPs in 3 GB of int4 weights. Here, four passes of "
        f"one layer lower the loss by {' and '.join(f'{gain} nats at E = {E}' for E, gain in gains.items())}."
    )
    add_picture(
        report,
        panels,
        "From the paper's law: loss against recurrence at 5e21 FLOPs, and the best design as memory grows.",
    )
    report.heading("Trained now")
    report.table(COLUMNS, rows)
    micro = law.observations
    table: Table = loss_over_recurrence(micro, {"bounded": law.law})
    add_picture(
        report,
        [Panel(table, draw_loss_over_recurrence)],
        "The shipped micro-sweep, measured: points are runs, lines the bounded law fitted to them.",
        3.0,
    )
    report.provenance(trained=f"{len(seen)} runs in {folder / 'runs.csv'}", fitted=micro.source)
    report.save(folder / "report.html")
    console().print(f"Saved {folder / 'report.html'} and {folder / 'runs.csv'}.", highlight=False)
