"""A plan's report: what was asked, what to train, how sure that is, and why the rivals lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loopscale.architecture import RUNGS
from loopscale.core.quantities import format_bytes, format_count, format_size
from loopscale.core.report import Report
from loopscale.core.tables import Table
from loopscale.figures.optima import MEMORIES, draw_isoflop_over_recurrence
from loopscale.figures.reports.results import add_picture, file_facts
from loopscale.figures.style import COLOURS, LOSS, Panel, finish, legend, log_ticks, or_new, powers
from loopscale.planning import Candidate, Plan, design_label, isoflop_over_recurrence, ladder_space
from loopscale.planning.text import budget_text, mark, sentences
from loopscale.scaling import ScalingLaw

_COSTS = {"memory": ("memory (GB)", 1e9), "inference": ("FLOPs for a generated token", 1.0)}


def front_table(plan: Mapping[str, Any], cost: str) -> Table:
    """Return a plan's front: ``design, cost, loss, low, high, chosen``, with the name of the cost in ``kind``.

    ``low`` and ``high`` are the 90% band of the loss; None where the law states no uncertainty.
    """
    choice = plan["choice"]
    name = design_label(choice["rung"], choice["experts"], choice["recurrence"])
    rows = plan["pareto"][cost]
    return Table.from_records(
        [
            {"kind": cost, "design": row["design"], "cost": row[cost], "loss": row["loss"],
             "low": row.get("loss_low"), "high": row.get("loss_high"), "chosen": row["design"] == name}
            for row in rows
        ]
    )  # fmt: skip


def draw_front(table: Table, axes: Any | None = None) -> Any:
    """Draw a front of :func:`front_table`, the choice starred where it lies on it."""
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


COLUMNS = ("design", "active", "tokens", "loss", "weights", "verdict")


def plan_report(
    plan: Any, law: ScalingLaw | None = None, source: str | Path | None = None, command: str | None = None
) -> Report:
    """Return the report of a plan, given as :meth:`loopscale.planning.Plan.to_dict` writes it.

    ``law`` is the law that the plan trusts; with it, the report shows how loss changes with recurrence.
    ``source`` is the file that the plan was read from; ``command`` gives the same plan, by default the one that runs.
    """
    where = "plan" if source is None else str(source)
    facts = {**file_facts(source), **({} if command is None else {"command": command})}
    return _report(Plan.from_dict(plan, where), law, facts)


def _report(plan: Plan, law: ScalingLaw | None, provenance: Mapping[str, str]) -> Report:
    choice, said = plan.choice, sentences(plan)
    report = Report(f"Plan: {choice.label}")
    report.question(f"Which model should be trained under these limits: {budget_text(plan.budget)}?")
    report.answer(f"{said['answer']} nats per token. {said['costs']}.")
    _add_confidence(report, plan, said)
    _add_figures(report, plan, law)
    report.heading("Alternatives considered")
    report.table(COLUMNS, [_row(row) for row in [choice, *plan.rivals()]])
    report.provenance(**provenance, law=plan.law_name, rule=f"{plan.rule.value}, eps {plan.eps:g}")
    return report


def _add_confidence(report: Report, plan: Plan, said: Mapping[str, str]) -> None:
    report.heading("Confidence")
    if plan.choice.extrapolated:
        axes = " and ".join(plan.choice.extrapolated)
        report.warning(f"The law is used outside the range it was fitted on: {axes}. {said['trust']}.")
    elif said["trust"]:
        report.text(f"{said['trust']}.")
    for part in ("edge", "confidence", "prices"):
        if said[part]:
            report.text(f"{said[part]}.")
    if plan.agreement is None:
        report.text("The law carries no resampled laws, so how often they would choose the same is not known.")
        return
    report.table(("design", "share of resampled laws"), [(design, f"{share:.0%}") for design, share in plan.votes()])


def _add_figures(report: Report, plan: Plan, law: ScalingLaw | None) -> None:
    choice, data = plan.choice, plan.to_dict()
    if law is not None and choice.rung in RUNGS and plan.budget.flops is not None:
        space = ladder_space([choice.rung], [choice.experts])
        table = isoflop_over_recurrence(law, [plan.budget.flops], space, eps=plan.eps)
        panels = [Panel(table, draw_isoflop_over_recurrence)]
    else:
        panels = []
    panels += [Panel(front_table(data, cost), draw_front) for cost in ("memory", "inference") if data["pareto"][cost]]
    add_picture(report, panels, "Loss against recurrence at the same compute, and the designs that no other beats in "
                "both loss and cost; the star is the choice.")  # fmt: skip


def _row(row: Candidate) -> Sequence[str]:
    return (
        row.label,
        format_size(row.active),
        format_count(row.tokens),
        mark(f"{row.loss:.4f}", bool(row.extrapolated)),
        format_bytes(row.weight_bytes),
        row.verdict,
    )
