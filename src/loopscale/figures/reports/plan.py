"""A plan's report: what was asked, what to train, how sure that is, and why the rivals lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loopscale.architecture import RUNGS, ladder_space
from loopscale.core.quantities import format_bytes, format_count
from loopscale.core.report import Report
from loopscale.core.tables import Table
from loopscale.figures.optima import MEMORIES, draw_isoflop_over_recurrence
from loopscale.figures.pictures import Panel
from loopscale.figures.reports.parts import add_picture, file_facts
from loopscale.figures.style import COLOURS, LOSS, finish, legend, log_ticks, or_new, powers
from loopscale.planning import Design, Plan, budget_text
from loopscale.planning.design import card_size, design_text, experts_text
from loopscale.planning.profiles import isoflop_over_recurrence
from loopscale.planning.screen import headline, plan_facts
from loopscale.planning.text import by_loss, mark, sentences
from loopscale.scaling import ScalingLaw

_COSTS = {"memory": ("memory (GB)", 1e9), "inference": ("FLOPs for a generated token", 1.0)}


def front_table(plan: Plan, cost: str) -> Table:
    """Return a plan's front: ``design, cost, loss, low, high, chosen``, with the name of the cost in ``kind``.

    ``low`` and ``high`` are the 90% band of the loss; None where the law states no uncertainty.
    """
    return Table.from_records(
        [
            {"kind": cost, "design": row.design, "cost": row.cost, "loss": row.loss, "low": row.loss_low,
             "high": row.loss_high, "chosen": row.design == plan.choice.label}
            for row in plan.pareto[cost]
        ]
    )  # fmt: skip


def draw_front(table: Table, axes: Any | None = None) -> Any:
    """Draw a front of ``front_table``, the choice starred where it lies on it."""
    axes = or_new(axes)
    kind = table.columns["kind"][0]
    label, unit = _COSTS[kind]
    cost = [value / unit for value in table.columns["cost"]]
    if None not in table.columns["low"]:
        axes.fill_between(cost, table.columns["low"], table.columns["high"], step="post", color=COLOURS[0],
                          alpha=0.15, linewidth=0, label="90% band of the loss")  # fmt: skip
    axes.step(cost, table.columns["loss"], where="post", color=COLOURS[0], linewidth=1.2)
    axes.scatter(cost, table.columns["loss"], s=12, color=COLOURS[0], zorder=3, label="unbeaten")
    for row in table.records():
        if row["chosen"]:
            axes.scatter(row["cost"] / unit, row["loss"], s=75, marker="*", color=COLOURS[1], edgecolors="k",
                         linewidths=0.6, zorder=4, label="chosen")  # fmt: skip
    axes.set_xscale("log")
    if kind == "memory":
        log_ticks(axes.xaxis, MEMORIES)
    else:
        powers(axes.xaxis)
    legend(axes)
    return finish(axes, f"Best loss by {kind} cost", label, LOSS)


COLUMNS = ("design", "active", "total", "experts", "tokens", "loss", "weights", "verdict")


def plan_report(
    plan: Plan,
    law: ScalingLaw | None = None,
    source: str | Path | None = None,
    command: str | None = None,
) -> Report:
    """Return the report of a plan.

    ``law`` is the law that the plan trusts; with it, the report shows how loss changes with recurrence.
    ``source`` is the file that the plan was read from; ``command`` gives the same plan, by default the one that runs.
    """
    choice, texts = plan.choice, sentences(plan)
    report = Report(f"Plan: {headline(choice)}")
    report.question(f"Which model should be trained under these limits: {budget_text(plan.budget)}?")
    report.answer(f"Train {design_text(choice)}, on {format_count(choice.tokens)} tokens.")
    report.table(("", ""), [*plan_facts(plan).items()])
    if choice.extrapolated:
        report.text(f"{texts['legend']}.")
    _add_figures(report, plan, law)
    _add_confidence(report, plan, texts)
    report.text(f"{texts['costs']}.")
    report.heading("Nearest designs")
    report.table(COLUMNS, [_row(row) for row in [choice, *by_loss(plan.rivals)]])
    facts = {**file_facts(source), **({} if command is None else {"command": command})}
    report.provenance(**facts, law=plan.law, rule=f"{plan.rule.value}, eps {plan.eps:g}")
    return report


def _add_confidence(report: Report, plan: Plan, texts: Mapping[str, str]) -> None:
    report.heading("Confidence")
    if plan.choice.extrapolated:
        axes = " and ".join(plan.choice.extrapolated)
        report.warning(f"The law is used outside the range it was fitted on: {axes}. {texts['trust']}.")
    else:
        report.text(f"{texts['trust']}.")
    for part in ("edge", "speed", "confidence", "prices"):
        if texts[part]:
            report.text(f"{texts[part]}.")
    if plan.agreement is None:
        if plan.trust.level != "beyond":
            report.text("The law carries no resampled laws, so how often they would choose the same is not known.")
        return
    report.table(("design", "share of resampled laws"), [(vote.design, f"{vote.share:.0%}") for vote in plan.votes])


def _add_figures(report: Report, plan: Plan, law: ScalingLaw | None) -> None:
    choice, panels = plan.choice, []
    if law is not None and choice.rung in RUNGS and plan.budget.flops is not None:
        space = ladder_space([choice.rung], [choice.experts])
        table = isoflop_over_recurrence(law, [plan.budget.flops], space, eps=plan.eps)
        panels.append(Panel(table, draw_isoflop_over_recurrence))
    fronts = [Panel(front_table(plan, cost), draw_front) for cost, front in plan.pareto.items() if front]
    looped, panels = bool(panels), [*panels, *fronts]
    passes = "Loss by passes (R) at the same compute, and the" if looped else "The"
    if panels:
        add_picture(report, panels, f"{passes} designs that no other beats in both loss and cost. Star: the choice. "
                    "Loss is in nats per token.")  # fmt: skip


def _row(row: Design) -> Sequence[str]:
    return (
        row.label,
        card_size(row.active_parameters),
        card_size(row.total_parameters),
        experts_text(row.experts_active, row.experts_total),
        format_count(row.tokens),
        mark(f"{row.loss:.4f}", bool(row.extrapolated)),
        format_bytes(row.weight_bytes),
        row.verdict,
    )
