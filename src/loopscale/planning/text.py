"""Plans in sentences: the one place for their wording, which the command line, reports, the API and the page share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING

from loopscale.core.quantities import counted, decimals, format_bytes, format_count, format_power
from loopscale.core.text import capital
from loopscale.planning.budget import FIELDS
from loopscale.planning.design import Design, card_size, design_text, law_counts_text
from loopscale.planning.intervals import interval_text, uncertainty_text
from loopscale.scaling import Trust

if TYPE_CHECKING:
    from loopscale.planning.growing import Growth
    from loopscale.planning.plans import Plan
    from loopscale.planning.sensitivity import BitsChoice, Sensitivity

EXTRAPOLATED = "†"
"""Marks a number for which the law is used outside the range it was fitted on."""


BEYOND = "beyond 10x"
"""Written in place of a loss where the law has no data within a factor of ten."""


def mark(text: str, extrapolated: bool) -> str:
    """Return ``text`` with the sign of extrapolation where it applies."""
    return f"{text}{EXTRAPOLATED}" if extrapolated else text


def by_loss(designs: Iterable[Design]) -> list[Design]:
    """Return designs by rising loss; those without a stated loss come last."""
    return sorted(designs, key=lambda row: (row.trust == "beyond", row.loss))


def legend(axes: Iterable[str]) -> str:
    """Return the line that explains the sign, or nothing when it was not used."""
    outside = sorted(set(axes))
    if not outside:
        return ""
    return f"{EXTRAPOLATED} extrapolated: outside the range the law was fitted on ({', '.join(outside)})"


def answer(plan: Plan) -> str:
    """Say what to train, in a sentence."""
    choice, trust = plan.choice, plan.trust
    loss = mark(f"{choice.loss:.4f}", bool(choice.extrapolated))
    sentence = f"Train {design_text(choice)}, on {format_count(choice.tokens)} tokens: predicted loss {loss}"
    if trust.level in ("far", "beyond"):
        return f"{sentence}, extrapolated {TRUST_TEXT[trust.level]}: {trust.axes}"
    return sentence


def costs(plan: Plan) -> str:
    """Say what the choice holds and costs."""
    choice, budget = plan.choice, plan.budget
    weights = f"{format_bytes(choice.weight_bytes)} of weights at {budget.bits:g} bits"
    cache = f" + {format_bytes(choice.kv_bytes)} of KV cache" if choice.kv_bytes else ""
    limit = "" if budget.memory is None else f" (of {format_bytes(budget.memory)})"
    training = f"{format_power(choice.train_flops)} FLOPs of training{_real(plan)}"
    generated = f"{format_power(choice.inference_flops)} per generated token"
    worth = f"As good as {card_size(choice.effective_parameters)} without looping; " if choice.recurrence > 1 else ""
    lossless = "" if budget.bits >= 16 else ". Losses are of unquantised weights"
    return f"{worth}{weights}{cache}{limit}; {training}, {generated}. {law_counts_text(choice)}{lossless}"


def _real(plan: Plan) -> str:
    """Say what training costs with all that 6 N_unroll D leaves out."""
    real = plan.real_train_flops
    if real is None:
        return ""
    supervised = f", {format_power(real['supervised'])} with per-loop supervision" if plan.choice.recurrence > 1 else ""
    return f" by 6ND ({format_power(real['flops'])} with output head, attention and expert padding{supervised})"


def speed_text(design: Design, bandwidth: float | None) -> str:
    """Say how fast a design can generate; nothing where no bandwidth is given."""
    if design.tokens_per_second is None or bandwidth is None:
        return ""
    return (
        f"Generates at most {format_count(design.tokens_per_second)} tokens/s for one sequence (roofline: "
        f"{format_bytes(design.bytes_per_token)} read per token at {format_bytes(bandwidth)}/s)"
    )


AXIS_TEXT = {"size": "size", "experts": "number of experts", "recurrence": "number of passes"}
TRUST_TEXT = {
    "inside": "inside the range that the law was fitted on",
    "near": "near the range that the law was fitted on",
    "far": "far beyond the range that the law was fitted on",
    "beyond": "more than 10x beyond the range that the law was fitted on",
}


def short_trust(trust: Trust) -> str:
    """Say how far a prediction can be trusted; the basis of its interval is stated elsewhere."""
    reasons = [reason for reason in trust.reasons if not reason.startswith(uncertainty_text(""))]
    return f"{trust.level}: {'; '.join(reasons)}" if reasons else f"{trust.level} the range of the law's data"


def trust_text(trust: Trust) -> str:
    """Say the same as a sentence."""
    return f"Trust: {short_trust(trust)}"


def confidence(plan: Plan) -> str:
    """Say on which law and rule the choice rests, and how certain it is."""
    eps = f"{plan.eps:.3g}"
    sentence = "Chosen by the lowest loss alone" if plan.rule.value == "loss" else _lead(plan, eps)
    if plan.agreement is not None:
        votes = [vote for vote in plan.votes[:4] if vote.share >= 0.05]
        picked = ", ".join(f"{vote.design} {vote.share:.0%}" for vote in votes)
        choices = f"; the refits pick {picked}" if picked and votes[0].share >= 0.2 else ""
        tie = plan.eps or plan.law_eps or 0.0  # the rule "loss" has no eps
        sentence += f". Within {tie:.3g} of the best in {share_text(plan.agreement, plan.resamples)} refits{choices}"
    law = law_text(plan.law, plan.resamples)
    if plan.frontier is not None:
        sentence += f". Loss {frontier_text(plan.frontier)}"
    return f"{sentence}. {capital(interval_text(plan.interval, plan.uncertainty, plan.trust.level))}. Law: {law}"


def frontier_text(frontier: Mapping[str, float]) -> str:
    """Say what the frontier of the runs forecasts where the law disagrees with it."""
    digits = decimals((frontier["high"] - frontier["low"]) / 2)
    span = f"{frontier['low']:.{digits}f}–{frontier['high']:.{digits}f}"
    return f"{frontier['loss']:.{digits}f} ({span}) by the runs' frontier: it disagrees with the law"


def share_text(share: float, count: int) -> str:
    """Write a share of refits: "all 100" or "94 of 100"."""
    return f"all {count}" if share == 1 else f"{round(share * count)} of {count}"


def _lead(plan: Plan, eps: str) -> str:
    own = plan.eps != plan.law_eps
    step = f"the minimum gain that you set ({eps})" if own else f"the law's fit error ({eps})"
    if (sizes := plan.tied_sizes) is not None:
        low, high = map(format_count, sizes)
        return f"Any size from {low} to {high} is within {step} of the best"
    lead = plan.lead
    if lead is None:
        return "No other design is allowed"
    if lead < plan.eps:
        return f"The top two differ by {lead:.4f} nats, less than {step}: a tie"
    return f"Beats the runner-up by {lead:.4f} nats, above {step}"


def law_text(name: str, resamples: int) -> str:
    """Name the law as results should: published ones by name, files by the name inside."""
    return f"{name} with {counted(resamples, 'resampled law')}" if resamples else name


def prices(plan: Plan) -> str:
    """Say which limits bind, what relaxing them buys, and what the next-best design would need."""
    parts = [
        f"{loosened(row)} would lower the loss {row.saved:.4f} ({row.design}, trust: {row.trust})"
        for row in plan.sensitivities
        if row.binds
    ]
    slack = [FIELDS[row.limit].label for row in plan.sensitivities if not row.binds]
    if slack:
        parts.append(f"Not binding: {', '.join(slack)}")
    if (better := plan.next_best) is not None:
        near = 1.01 < better.factor < 1.05  # closer ones are written exactly
        over = f", {better.factor - 1:.2%} over the limit" if near else ""
        parts.append(
            f"The nearest better design, {better.design} (loss {better.loss:.4f}, trust: {better.trust}), "
            f"{better.needs}{over}" + ("" if better.fits_with is None else f"; it fits with {better.fits_with}")
        )
    if plan.at_real_bits is not None:
        parts.append(capital(bits_text(plan.at_real_bits)))
    if plan.unspent_flops:
        assert plan.budget.flops is not None
        share = plan.unspent_flops / plan.budget.flops
        parts.append(f"{format_power(plan.unspent_flops)} FLOPs ({share:.0%} of the compute) stay unspent")
    return ". ".join(parts)


def bits_text(other: BitsChoice) -> str:
    """Say what a format of weights that people use would allow."""
    choice = "nothing fits" if other.design is None else f"the choice is {other.design} (loss {other.loss:.4f})"
    return f"at {other.bits:g} bits ({other.format}) {choice}"


def loosened(row: Sensitivity) -> str:
    """Name a loosened limit: "Twice the memory"."""
    return f"{'Twice' if row.factor > 1 else 'Half'} the {FIELDS[row.limit].label}"


def kv_text(plan: Plan) -> str:
    """Say what each way to keep keys and values would allow."""
    if not plan.kv_policies:
        return ""
    rows = [
        f"{row.policy} {row.design} (loss {row.loss:.4f}, {format_bytes(row.kv_bytes)})" for row in plan.kv_policies
    ]
    return f"By KV policy: {'; '.join(rows)}. The law does not know what a smaller cache costs in loss"


def edge_text(plan: Plan) -> str:
    """Say on which axes the choice is the last value that was searched."""
    parts = []
    for edge in plan.edge:
        last = {"high": "largest", "low": "smallest"}[edge.side]
        limit = "that you allowed" if edge.set_by == "you" else "that is searched by default"
        axis = {"size": "size", "experts": "E =", "recurrence": "R ="}[edge.axis]
        parts.append(f"{axis} {edge.value} is the {last} {limit}")
    return f"At an edge: {'; '.join(parts)}; a value beyond it may do better" if parts else ""


def sentences(plan: Plan) -> dict[str, str]:
    """Return the plan in sentences, by subject; a subject with nothing to say is empty."""
    listed = [plan.choice, *plan.rivals]
    return {
        "answer": answer(plan),
        "costs": costs(plan),
        "devices": "" if plan.devices is None else plan.devices.text(),
        "speed": speed_text(plan.choice, plan.budget.bandwidth),
        "confidence": confidence(plan),
        "trust": trust_text(plan.trust),
        "prices": prices(plan),
        "edge": edge_text(plan),
        "kv": kv_text(plan),
        "legend": legend(axis for row in listed for axis in row.extrapolated),
    }


COLUMNS = ("size", "experts", "R", "tokens", "loss", "memory", "verdict")
"""Of the table of alternatives, which fits 80 columns."""


def table_row(row: Design, extrapolate: bool = False) -> tuple[str, ...]:
    """Return one line of the table of alternatives; a loss far beyond the data is stated with ``extrapolate`` only."""
    outside, stated = row.extrapolated, extrapolate or row.trust != "beyond"
    experts = "dense" if row.experts_total == 1 else f"{row.experts_active:g} of {row.experts_total:g}"
    return (
        mark(row.rung, "size" in outside),
        mark(experts, "experts" in outside),
        mark(str(row.recurrence), "recurrence" in outside),
        mark(format_count(row.tokens), "tokens" in outside),
        mark(f"{row.loss:.4f}", bool(outside)) if stated else BEYOND,
        format_bytes(row.memory),
        row.verdict if stated or row.ruled_out_by else "",
    )


def short(plan: Plan) -> str:
    """Return the plan on one line, for a terminal."""
    choice = plan.choice
    return (
        f"<Plan {choice.label}: loss {choice.loss:.4f} on {format_count(choice.tokens)} tokens, "
        f"trust {plan.trust.level}>"
    )


def table_html(plan: Plan) -> str:
    """Return the plan for a notebook: the sentences and the table of alternatives."""
    texts = sentences(plan)
    lines = [f"<p><b>{escape(texts['answer'])}</b></p>"]
    lines += [f"<p>{escape(texts[part])}</p>" for part in ("costs", "trust", "confidence", "prices") if texts[part]]
    rows = [table_row(row, plan.trust.level == "beyond") for row in [plan.choice, *by_loss(plan.rivals)]]
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return "".join([*lines, f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"])


def growth_text(growth: Growth | None, eps: float) -> str:
    """Say what a schedule of passes is worth."""
    if growth is None:
        return f"no schedule of passes saves more than {eps:.2g} at this compute"
    stages = ", ".join(f"[{start:g}, {passes:g}]" for start, passes in growth.schedule)  # as in a training file
    basis = "" if growth.measured else "; measured for 2 to 4 passes in dense models alone"
    return (
        f"[{stages}] saves {growth.saved:.3f}: loss {growth.loss:.4f} on "
        f"{format_count(growth.tokens)} tokens, {format_power(growth.train_flops)} FLOPs at {growth.mean_passes:.2f} "
        f"passes on average{basis}"
    )
