"""``loopscale demo``: the whole loop on built-in defaults."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from loopscale.architecture import ladder_space, rung
from loopscale.cli.output import console, print_table, say
from loopscale.cli.profile import print_joint
from loopscale.cli.verbs import verb
from loopscale.core.errors import check_extra
from loopscale.core.files import make_folder, write_text
from loopscale.core.quantities import format_power
from loopscale.core.report import Report
from loopscale.core.tables import Table
from loopscale.figures import draw_isoflop_over_recurrence, draw_joint_optimum
from loopscale.figures.capacity import draw_loss_over_recurrence, loss_over_recurrence
from loopscale.figures.pictures import Panel, Picture
from loopscale.figures.reports.parts import add_picture
from loopscale.figures.style import save
from loopscale.fitting import Fit, Observations, fit
from loopscale.fitting.data.public import load_micro
from loopscale.planning import Budget, Plan, search
from loopscale.planning.compute import flops_of
from loopscale.planning.profiles import isoflop_over_recurrence, joint_optimum
from loopscale.planning.screen import plan_screen
from loopscale.planning.text import legend, mark, sentences
from loopscale.scaling import Points, costs, published

if TYPE_CHECKING:
    from loopscale.lab.scores import Scores

COLUMNS = ("E", "R", "tokens", "loss", "shipped", "law", "minus R=1")
EQUAL_COLUMNS = ("E", "R", "tokens", "predicted loss", "difference to R=1", "90% interval")
PASSES = 12
"""Passes at which the model of the laboratory is shown to solve its task."""
RESAMPLES = 60
"""Refits for the intervals of the comparison at equal compute."""


@verb("demo")
@click.option("--out", type=click.Path(), default="out", show_default=True, help="Folder for everything it makes.")
@click.option("--plan-only", is_flag=True, help="Plan with the paper's law only; train nothing.")
@click.pass_context
def demo_command(ctx: click.Context, out: str, plan_only: bool) -> None:
    """Plan, see a loop solve a task, train tiny models, fit, report.

    Takes two or three minutes on two cores. A demo that was stopped resumes where it was.

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
    scores = _loop_at_work()
    seen = _train(ctx, folder)
    law = _fit()
    rows = _compare(seen, law)
    equal = _equal_compute(seen, law)
    _report(folder, chosen, panels, scores, seen, law, rows, equal)
    _close(chosen, scores, equal)


def _plan(folder: Path) -> tuple[Plan, list[Panel]]:
    """Plan with the paper's law, and return the plan and its figures."""
    law, budget = published(), Budget(flops=5e21, memory=3e9, bits=4)
    console().rule("Which model fits a phone: 5e21 FLOPs of training, 3 GB of int4 weights")
    result = search(budget, law=law)
    best = Plan.of(result)
    click.echo("$ loopscale plan --flops 5e21 --memory 3GB --bits int4\n" + plan_screen(best, result.rivals(4)))
    best.save(folder / "plan.json")
    console().rule("The best design as memory grows, at 5e21 FLOPs")
    print_joint("", joint_optimum(law, [1e9, 3e9, 1e10], budget))
    steps = joint_optimum(law, np.geomspace(0.17e9, 30e9, 400), budget)
    steps.save(folder / "joint.csv")
    console().rule("How often should a 0.3B model loop, to match a 0.6B one trained on 6T tokens")
    matched = flops_of(rung("0.6B", experts=8), 6e12)
    looped = search(Budget(flops=matched), ladder_space(["0.3B"], [8]), law)
    click.echo("$ loopscale plan --rung 0.3B --experts 8 --like 0.6B:8:1 --like-tokens 6T")
    click.echo(plan_screen(Plan.of(looped), looped.rivals(2)))
    curves = isoflop_over_recurrence(law, [5e21], ladder_space(["0.3B", "1.0B"], [1, 8]))
    panels = [Panel(curves, draw_isoflop_over_recurrence), Panel(steps, draw_joint_optimum)]
    save(Picture("plan", "", tuple(panels), 2.8).figure(columns=2), folder / "plan.png")
    say(f"Saved {folder / 'plan.png'}, {folder / 'plan.json'} and {folder / 'joint.csv'}.")
    return best, panels


def _loop_at_work() -> Scores:
    """Score the shipped model of a task that needs many passes, at each test-time R, and return the scores."""
    from loopscale.cli.lab.training import print_scores
    from loopscale.lab.shipped import shipped_model, show_shipped

    weights = sum(weight.numel() for weight in shipped_model().parameters())
    console().rule("Looping at work: a task that one pass cannot solve, and more passes can")
    say(
        f"The task: the product of 12 elements of the group S3. The model: one layer, {weights:,} weights, trained "
        "with about ten passes, another number at each step, and now scored with fewer and more."
    )
    scores = show_shipped()
    print_scores(scores, PASSES)
    say("`loopscale lab s3` trains it again while you watch, in about two minutes.")
    return scores


def _loop_sentence(scores: Scores) -> str:
    """Say what passes do on the task."""
    return (
        f"One layer that runs once solves {scores.at(1):.0%} of the words of S3 (chance {scores.task.chance:.0%}); the "
        f"same layer run {PASSES} times solves {scores.at(PASSES):.0%}."
    )


def _train(ctx: click.Context, folder: Path) -> Observations:
    """Train the demo's runs, or resume them, and return their losses."""
    from loopscale.cli.sweep import run as run_sweep
    from loopscale.sweep.export import observations
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.store import Store

    console().rule("Plain text for comparison: six looped MoEs of one layer, trained now")
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
    fitted = fit(load_micro(), outer="joint-moe", mapping="bounded", resamples=RESAMPLES)
    c = fitted.law.coefficients
    say(
        f"{len(fitted.observations)} losses of {len(fitted.observations.runs)} runs, RMSE {fitted.law.rmse:.4f} nats: "
        f"looping is worth at most {c['kappa1']:.2f} of the loop block's weights, with a scale of {c['kappa2']:.2f} "
        "passes"
    )
    return fitted


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
             mark(f"{predicted[i]:.4f}", any(flags[i] for flags in outside.values())),
             f"{seen.loss[i] - base[p.experts[i]]:+.4f}")
        )  # fmt: skip
    title = "Validation loss at equal tokens, nats per byte: trained now, as shipped, and predicted by the law"
    print_table(title, COLUMNS, rows)
    if note := legend(axis for axis, flags in outside.items() if flags.any()):
        say(note)
    return rows


@dataclass(frozen=True)
class Looped:
    """A model looped more or less often at the same training compute, as the fitted law predicts it."""

    experts: float
    recurrence: float
    flops: float
    tokens: float
    loss: float
    difference: float
    """Loss minus that without looping; below zero, looping pays."""
    low: float
    high: float
    """The 90% interval of the difference, from refits to resampled runs."""

    @property
    def verdict(self) -> str:
        """What follows for looping at equal compute."""
        if self.low > 0:
            return "does not pay"
        return "pays" if self.high < 0 else "cannot be told from not looping"


def _equal_compute(seen: Observations, law: Fit) -> list[Looped]:
    """Print and return what looping does at equal compute: fewer passes see more tokens, all within the law's data."""
    p = seen.points
    loops = p.active if p.loop is None else p.loop
    rows: list[Looped] = []
    for E in np.unique(p.experts):
        most = int(np.argmax(np.where(p.experts == E, p.recurrence, 0)))
        passes = np.unique(p.recurrence[p.experts == E])
        unrolled = costs.unrolled(p.active[most], loops[most], passes)
        fewest = max(p.tokens[most], law.observations.points.tokens.min())
        flops = float(costs.train_flops(unrolled[-1], fewest))
        tokens = np.asarray(costs.tokens_for(flops, unrolled))
        total = p.active[most] if p.total is None else p.total[most]
        points = Points(p.active[most], tokens, passes, E, loops[most], total)
        loss, refits = law.law(points), law.law.resampled(points)
        low, high = np.percentile(refits - refits[:, :1], [5, 95], axis=0)
        rows += [
            Looped(float(E), float(R), flops, float(D), float(value), float(value - loss[0]), float(a), float(b))
            for R, D, value, a, b in zip(passes, tokens, loss, low, high, strict=True)
        ]
    print_table("The same at equal training compute, predicted by the law", EQUAL_COLUMNS, _equal_rows(rows))
    say(f"{_equal_answer(rows)} {_measured_pairs(law.observations)}")
    return rows


def _measured_pairs(micro: Observations) -> str:
    """Say what the measured runs show where one has four passes on a quarter of another's tokens."""
    p = micro.points
    losses: dict[tuple[float, ...], list[float]] = {}
    for N, E, R, D, loss in zip(p.active, p.experts, p.recurrence, p.tokens, micro.loss, strict=True):
        losses.setdefault((N, E, R, round(D / 1e5)), []).append(loss)
    pairs = [
        np.mean(looped) - np.mean(losses[N, E, 1.0, other])
        for (N, E, R, D), looped in losses.items()
        for other in range(int(4 * D) - 2, int(4 * D) + 3)
        if R == 4 and (N, E, 1.0, other) in losses
    ]
    if not pairs:
        return ""
    return (
        f"Measured directly in the shipped sweep: in {len(pairs)} pairs of models of the same size and experts, R = 4 "
        f"on a quarter of the tokens ends {np.mean(pairs):+.4f} nats from R = 1 (from {min(pairs):+.4f} to "
        f"{max(pairs):+.4f})."
    )


def _equal_rows(rows: list[Looped]) -> list[tuple[str, ...]]:
    return [
        (f"{row.experts:g}", f"{row.recurrence:g}", f"{row.tokens:,.0f}", f"{row.loss:.4f}",
         "" if row.recurrence == 1 else f"{row.difference:+.4f}",
         "" if row.recurrence == 1 else f"{row.low:+.4f} to {row.high:+.4f}")
        for row in rows
    ]  # fmt: skip


def _equal_answer(rows: list[Looped]) -> str:
    """Answer whether looping pays at equal compute, with the uncertainty."""
    most = max(row.recurrence for row in rows)
    parts = [
        f"at E = {row.experts:g} it {row.verdict} ({row.difference:+.4f} nats, 90% interval {row.low:+.4f} to "
        f"{row.high:+.4f})"
        for row in rows
        if row.recurrence == most
    ]
    flops = format_power(rows[0].flops, 2)
    return (
        f"Does looping pay at equal compute? With {flops} FLOPs and R = {most:g} in place of R = 1 on more tokens, "
        f"{'; '.join(parts)}. These are one-layer models on one small corpus, and the law's interval covers the noise "
        "between runs only."
    )


def _shipped() -> dict[tuple[float, ...], float]:
    micro = load_micro("micro-all")
    p = micro.points
    first = np.array([run.endswith("-s0") for run in micro.run])
    keys = zip(p.active[first], p.experts[first], p.recurrence[first], p.tokens[first], strict=True)
    return dict(zip(keys, micro.loss[first].tolist(), strict=True))


def _report(
    folder: Path,
    chosen: Plan,
    panels: list[Panel],
    scores: Scores,
    seen: Observations,
    law: Fit,
    rows: list[tuple[str, ...]],
    equal: list[Looped],
) -> None:
    """Write the page that shows all of it."""
    from loopscale.figures.lab import draw_scores
    from loopscale.lab.shipped import shipped_model

    report = Report("Looped MoEs: planned, trained, fitted")
    report.question("Which looped MoE should one train, what does looping do, and does it pay at equal compute?")
    report.answer(
        f"{sentences(chosen)['answer']} (5e21 FLOPs, 3 GB of int4 weights). {_loop_sentence(scores)} On plain text: "
        f"{_equal_answer(equal)}"
    )
    report.text(_measured_pairs(law.observations))
    report.heading("A loop at work")
    report.figure(
        [draw_scores([scores], ["the shipped model"], shipped_model().config.recurrence)],
        "The word problem of S3 with twelve elements: accuracy by passes at test time, and by position.",
    )
    report.heading("Confidence")
    report.text(f"The plan: {sentences(chosen)['trust']}. {sentences(chosen)['confidence']}.")
    gains = " and ".join(f"{row[-1]} nats at E = {row[0]}" for row in rows if row[1] == "4")
    report.text(
        f"At equal tokens, four passes of one layer change the loss by {gains} (a minus is a lower loss), but cost "
        "four times the compute of one. The comparison at equal compute gives the model without looping four times the "
        "tokens instead."
    )
    report.table(EQUAL_COLUMNS, _equal_rows(equal))
    add_picture(
        report,
        panels,
        "From the paper's law: loss against recurrence at 5e21 FLOPs, and the best design as memory grows.",
    )
    report.heading("Trained now, at equal tokens")
    report.table(COLUMNS, rows)
    micro = law.observations
    table: Table = loss_over_recurrence(micro, {"bounded": law.law})
    add_picture(
        report,
        [Panel(table, draw_loss_over_recurrence)],
        "The shipped micro-sweep, measured: points are runs, lines the bounded law fitted to them.",
        3.0,
    )
    report.provenance(trained=f"{len(seen)} runs in runs.csv", fitted=Path(micro.source).name)
    report.save(folder / "report.html")
    say(f"Saved {folder / 'report.html'} and {folder / 'runs.csv'}.")


def _close(chosen: Plan, scores: Scores, equal: list[Looped]) -> None:
    """Say what was shown, and which command comes next."""
    most = max(row.recurrence for row in equal)
    verdicts = dict.fromkeys(row.verdict for row in equal if row.recurrence == most)
    console().rule("What this showed")
    say(
        f"Reasoning: {_loop_sentence(scores)}\n"
        f"Plain text: with one layer of width 32, at equal compute, R = {most:g} {' or '.join(verdicts)}.\n"
        f"At scale: the paper's law plans {chosen.choice.label} for 5e21 FLOPs and 3 GB.\n"
        "Next: `loopscale lab two-axes --shipped` shows what passes and experts each buy, over five seeds."
    )
