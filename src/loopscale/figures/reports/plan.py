"""The report of a plan: the budget, the design to train, its confidence, and why the alternatives lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loopscale.architecture import RUNGS
from loopscale.errors import InputError
from loopscale.figures.optima import MEMORIES, draw_isoflop_over_recurrence
from loopscale.figures.reports.parts import add_picture, file_facts
from loopscale.figures.style import COLOURS, LOSS, Panel, finish, legend, log_ticks, or_new, powers, scientific
from loopscale.files import versioned
from loopscale.laws import ScalingLaw
from loopscale.plan import isoflop_over_recurrence, ladder_space
from loopscale.plan.plan import SCHEMA
from loopscale.quantities import format_bytes, format_count, format_size
from loopscale.report import Report
from loopscale.tables import Table

_COSTS = {"memory": ("memory (GB)", 1e9), "inference": ("FLOPs for a generated token", 1.0)}


def front_table(plan: Mapping[str, Any], cost: str) -> Table:
    """Return a plan's front: ``design, cost, loss, chosen``, with the name of the cost in ``kind``."""
    choice = plan["choice"]
    name = f"{choice['rung']} E={choice['experts']:g} R={choice['recurrence']}"
    rows = plan["pareto"][cost]
    return Table.from_records(
        [
            {"kind": cost, "design": each["design"], "cost": each[cost], "loss": each["loss"],
             "chosen": each["design"] == name}
            for each in rows
        ]
    )  # fmt: skip


def draw_front(table: Table, axes: Any | None = None) -> Any:
    """Draw a front of :func:`front_table`, the choice starred where it lies on it."""
    axes = or_new(axes)
    kind = table.columns["kind"][0]
    label, unit = _COSTS[kind]
    cost = [value / unit for value in table.columns["cost"]]
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


def plan_report(plan: Any, law: ScalingLaw | None = None, source: str | Path | None = None) -> Report:
    """Return the report of a plan, given as :meth:`loopscale.plan.Plan.to_dict` writes it.

    ``law`` is the law that the plan trusts; with it, the report shows how loss changes with recurrence.
    ``source`` is the file that the plan was read from.
    """
    where = "plan" if source is None else str(source)
    versioned(plan, where, "plan", SCHEMA)
    try:
        return _report(plan, law, file_facts(source))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{where}: this plan is incomplete ({error}); write it again with `loopscale plan --out`"
        ) from None


def _report(plan: Mapping[str, Any], law: ScalingLaw | None, provenance: Mapping[str, str]) -> Report:
    choice, budget = plan["choice"], plan["budget"]
    report = Report(f"Plan: {_name(choice)}")
    report.question(_question(budget))
    passes = f"{choice['recurrence']} pass{'es' if choice['recurrence'] != 1 else ''}"
    report.answer(
        f"Train {choice['rung']} with E = {choice['experts']:g} and {passes}, on {format_count(choice['tokens'])} "
        f"tokens: predicted loss {choice['loss']:.4f} nats per token. It has {format_size(choice['active'])} active of "
        f"{format_size(choice['total'])} parameters and needs {format_bytes(choice['weight_bytes'])} for its weights."
    )
    _add_certainty(report, plan)
    _add_figures(report, plan, law)
    report.heading("Alternatives considered")
    report.table(COLUMNS, [_row(each) for each in [choice, *plan["rivals"]]])
    report.provenance(**provenance, law=plan["law"], rule=f"{plan['rule']}, eps {plan['eps']:g}")
    return report


def _question(budget: Mapping[str, Any]) -> str:
    parts = []
    if "flops" in budget:
        parts.append(f"{scientific(budget['flops'])} FLOPs of training")
    if "tokens" in budget:
        parts.append(f"{format_count(budget['tokens'])} tokens")
    if "max_tokens" in budget:
        parts.append(f"at most {format_count(budget['max_tokens'])} tokens")
    if "memory" in budget:
        parts.append(f"{format_bytes(budget['memory'])} of memory at {budget['bits']:g} bits a weight")
    if "context" in budget:
        parts.append(f"a context of {budget['context']:,} tokens")
    if "inference_flops" in budget:
        parts.append(f"{format_count(budget['inference_flops'])} FLOPs for each generated token")
    if budget.get("serve_tokens"):
        parts.append(f"{format_count(budget['serve_tokens'])} tokens to serve")
    return f"Which model should be trained with {', '.join(parts)}?"


def _add_certainty(report: Report, plan: Mapping[str, Any]) -> None:
    report.heading("Confidence")
    choice = plan["choice"]
    if choice["extrapolated"]:
        axes = " and ".join(choice["extrapolated"])
        report.warning(f"The law is used outside the range it was fitted on: {axes}.")
    if plan["lead"] is None:
        report.text("No other design is admissible.")
    else:
        report.text(f"The next admissible design is {plan['lead']:.4f} nats worse; eps is {plan['eps']:g}.")
    if plan["agreement"] is None:
        report.text("The law carries no resampled laws, so how often they would choose the same is not known.")
        return
    report.text(
        f"{plan['agreement']:.0%} of resampled laws choose the same design; 90% of them put its loss between "
        f"{choice['loss_low']:.4f} and {choice['loss_high']:.4f}."
    )
    report.table(
        ("design", "share of resampled laws"), [(each["design"], f"{each['share']:.0%}") for each in plan["votes"]]
    )


def _add_figures(report: Report, plan: Mapping[str, Any], law: ScalingLaw | None) -> None:
    choice = plan["choice"]
    if law is not None and choice["rung"] in RUNGS and "flops" in plan["budget"]:
        space = ladder_space([choice["rung"]], [choice["experts"]])
        table = isoflop_over_recurrence(law, [plan["budget"]["flops"]], space, eps=plan["eps"])
        panels = [Panel(table, draw_isoflop_over_recurrence)]
    else:
        panels = []
    panels += [Panel(front_table(plan, cost), draw_front) for cost in ("memory", "inference") if plan["pareto"][cost]]
    add_picture(report, panels, "Loss against recurrence at the same compute, and the designs that no other beats in "
                "both loss and cost; the star is the choice.")  # fmt: skip


def _row(each: Mapping[str, Any]) -> Sequence[str]:
    loss = f"{each['loss']:.4f}{'†' if each['extrapolated'] else ''}"
    return (
        _name(each),
        format_size(each["active"]),
        format_count(each["tokens"]),
        loss,
        format_bytes(each["weight_bytes"]),
        each["verdict"],
    )


def _name(each: Mapping[str, Any]) -> str:
    return f"{each['rung']} E={each['experts']:g} R={each['recurrence']}"
