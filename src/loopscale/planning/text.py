"""Plans in sentences: the one place for their wording, which the command line, reports, the API and the page share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from loopscale.core.quantities import format_bytes, format_count, format_power, format_size
from loopscale.scaling import ScalingLaw, Trust

if TYPE_CHECKING:
    from loopscale.planning.grid import Budget
    from loopscale.planning.plan import Candidate, Plan

EXTRAPOLATED = "†"
"""Marks a number for which the law is used outside the range it was fitted on."""


def mark(text: str, extrapolated: bool) -> str:
    """Return ``text`` with the sign of extrapolation where it applies."""
    return f"{text}{EXTRAPOLATED}" if extrapolated else text


def legend(axes: Iterable[str]) -> str:
    """Return the line that explains the sign, or nothing when it was not used."""
    outside = sorted(set(axes))
    if not outside:
        return ""
    return f"{EXTRAPOLATED} extrapolated: outside the range the law was fitted on ({', '.join(outside)})"


def capital(text: str) -> str:
    """Return ``text`` as the start of a sentence."""
    return text[:1].upper() + text[1:]


def _flops(value: float) -> str:
    return f"{format_power(value)} FLOPs"


LIMITS: dict[str, tuple[str, Callable[[float], str]]] = {
    "flops": ("training compute", _flops),
    "tokens": ("training tokens", format_count),
    "max_tokens": ("training tokens available", format_count),
    "memory": ("memory", format_bytes),
    "bits": ("bits per weight", "{:g}".format),
    "context": ("context", "{:,.0f} tokens".format),
    "batch": ("sequences in the KV cache", "{:g}".format),
    "kv_bits": ("bits per cached number", "{:g}".format),
    "kept_passes": ("passes that keep a KV cache", "{:g}".format),
    "kv_window": ("positions that the other passes keep", "{:g}".format),
    "unique_tokens": ("unique tokens", format_count),
    "inference_flops": ("inference FLOPs per token", _flops),
    "serve_tokens": ("lifetime inference tokens", format_count),
}
"""What each field of a budget is called, and how its value is written."""


def budget_text(budget: Budget) -> str:
    """List the limits that a budget sets."""
    values = budget.to_dict()
    ignored = set() if budget.context else {"batch", "kv_bits"}
    ignored |= set() if budget.memory else {"bits"}
    parts = [
        f"{name} {write(values[field])}"
        for field, (name, write) in LIMITS.items()
        if values.get(field) and field not in ignored
    ]
    return ", ".join(parts)


def design_text(choice: Candidate) -> str:
    """Describe a design: "a 1.0B-active, 5.4B-total MoE (1 of 8 experts active), looped twice"."""
    active, total = _size(choice.active + choice.embedding), _size(choice.total + choice.embedding)
    passes = choice.recurrence
    looped = "looped twice" if passes == 2 else f"looped {passes} times"
    if choice.experts == 1:
        return f"a {active} dense model, {'no looping' if passes == 1 else looped}"
    experts = f"1 of {choice.experts:g} experts active"
    return f"a {active}-active, {total}-total MoE ({experts}), {'not looped' if passes == 1 else looped}"


def _size(value: float) -> str:
    return f"{value / 1e9:.1f}B" if value >= 1e8 else format_count(value)


def answer(plan: Plan) -> str:
    """Say what to train, in a sentence."""
    choice, trust = plan.choice, plan.trust
    loss = mark(f"{choice.loss:.4f}", bool(choice.extrapolated))
    said = f"Train {design_text(choice)}, on {format_count(choice.tokens)} tokens: predicted loss {loss}"
    if trust is not None and trust.level in ("far", "beyond"):
        return f"{said}, {TRUST_TEXT[trust.level]} ({trust.axes})"
    return said


def costs(plan: Plan) -> str:
    """Say what the choice holds and costs."""
    choice, budget = plan.choice, plan.budget
    weights = f"{format_bytes(choice.weight_bytes)} of weights at {budget.bits:g} bits"
    cache = f" + {format_bytes(choice.kv_bytes)} of KV cache" if choice.kv_bytes else ""
    limit = "" if budget.memory is None else f" (of {format_bytes(budget.memory)})"
    training = f"{format_power(choice.train_flops)} FLOPs of training{_real(plan)}"
    generated = f"{format_power(choice.inference_flops)} per generated token"
    return f"{rung_text(choice)}; {weights}{cache}{limit}; {training}, {generated}"


def _real(plan: Plan) -> str:
    """Say what training costs with all that 6 N_unroll D leaves out."""
    real = plan.real_train_flops
    if real is None:
        return ""
    supervised = f", {format_power(real['supervised'])} with per-loop supervision" if plan.choice.recurrence > 1 else ""
    return f" by 6ND ({format_power(real['flops'])} with output head and attention{supervised})"


def rung_text(choice: Candidate) -> str:
    """Explain the name of a size: "1.0B rung: 0.755B active, 5.159B total"."""
    name = f"{choice.rung} rung: " if choice.embedding and choice.rung.endswith("B") else ""
    counted = " without embeddings" if choice.embedding else ""
    total = "" if choice.total == choice.active else f", {format_size(choice.total)} total"
    worth = "" if choice.recurrence == 1 else f"; performs like {format_size(choice.effective)} unlooped"
    return f"{name}{format_size(choice.active)} active{total}{counted}{worth}"


TRUST_TEXT = {
    "inside": "inside the range that the law was fitted on",
    "near": "near the range that the law was fitted on",
    "far": "far outside the range that the law was fitted on",
    "beyond": "an extrapolation more than 10x beyond the range that the law was fitted on",
}


def trust_text(trust: Trust | None) -> str:
    """Say how far a prediction can be trusted, with every reason."""
    if trust is None:
        return ""
    reasons = f": {'; '.join(trust.reasons)}" if trust.reasons else ""
    return f"Trust: {trust.level}{reasons}"


def confidence(plan: Plan) -> str:
    """Say on which law and rule the choice rests, and how certain it is."""
    law = plan.law_name if plan.evaluated is None else law_text(plan.law)
    eps = f"{plan.eps:.3g}"
    said = "Chosen by the lowest loss alone" if plan.rule.value == "loss" else _lead(plan, eps)
    if plan.agreement is not None:
        votes = [(design, share) for design, share in plan.votes()[:4] if share >= 0.05]
        own = ", ".join(f"{design} {share:.0%}" for design, share in votes)
        choices = f" (their choices: {own})" if own and votes[0][1] >= 0.2 else ""
        tie = plan.eps or (0.0 if plan.evaluated is None else plan.law.eps) or 0.0  # the rule "loss" has no eps
        said += f". Within {tie:.3g} of the best under {plan.agreement:.0%} of the resampled laws{choices}"
    return f"{said}. {capital(interval_text(plan.interval, plan.uncertainty))}. Law: {law}"


def uncertainty_text(uncertainty: str) -> str:
    """Say what intervals rest on, as a reason of trust."""
    return f"uncertainty: {uncertainty}"


def interval_text(interval: Mapping[str, Any] | None, uncertainty: str = "not published") -> str:
    """Write an interval with what it rests on, or why there is none."""
    if interval is None:
        return uncertainty_text(uncertainty)
    span = f"{interval['low']:.4f} to {interval['high']:.4f}"
    if interval["kind"] == "predictive":
        return f"{interval['level']:.0%} predictive interval for one run {span}, from {interval['basis']}"
    return f"{interval['level']:.0%} interval {span} of the law alone, from {interval['basis']}"


def front_band_text(kind: str | None, uncertainty: str) -> str:
    """Say what bands of the loss are: of one new run ("predictive"), or of the law alone."""
    if kind is None:
        return f"Bands: none; {uncertainty_text(uncertainty)}"
    return f"Bands: 90%, {'for one new run' if kind == 'predictive' else 'of the law alone'}; {uncertainty}"


def _lead(plan: Plan, eps: str) -> str:
    own = plan.evaluated is not None and plan.eps != plan.law.eps
    step = f"the minimum gain that you set ({eps})" if own else f"the law's fit error ({eps})"
    if (sizes := plan.tied_sizes) is not None:
        low, high = map(format_count, sizes)
        return f"Any size from {low} to {high} is within {step} of the best"
    lead = plan.lead
    if lead is None:
        return "No other design is admissible"
    if lead < plan.eps:
        return f"The top two differ by {lead:.4f} nats, less than {step}; treat them as tied"
    return f"Beats the runner-up by {lead:.4f} nats, above {step}"


def law_text(law: ScalingLaw) -> str:
    """Name the law as results should: published ones by name, files by the name inside."""
    resampled = "" if law.resamples is None else f" with {len(law.resamples)} resampled laws"
    return f"{law.name}{resampled}"


def prices(plan: Plan) -> str:
    """Say which limits bind, what relaxing them buys, and what the next-best design would need."""
    parts = []
    gains = [row for row in plan.sensitivities if row["saved"] > 1e-6]
    if gains:
        bought = [f"{LIMITS[row['limit']][0]} {row['saved']:.4f} ({row['design']}{_level(row)})" for row in gains]
        parts.append(f"Doubling a limit would save, in nats: {', '.join(bought)}")
    slack = [LIMITS[row["limit"]][0] for row in plan.sensitivities if row["saved"] <= 1e-6]
    if slack:
        parts.append(f"Not binding: {', '.join(slack)}")
    if (better := plan.next_best) is not None:
        loss = f"loss {better['loss']:.4f}{_level(better)}"
        parts.append(f"The nearest better design, {better['design']} ({loss}), {better['needs']}")
    if plan.unspent_flops:
        assert plan.budget.flops is not None
        share = plan.unspent_flops / plan.budget.flops
        parts.append(f"{format_power(plan.unspent_flops)} FLOPs ({share:.0%} of the compute) stay unspent")
    return ". ".join(parts)


def _level(row: Mapping[str, Any]) -> str:
    """Write the level of trust in a design's loss; nothing for a plan file that does not store it."""
    return f", trust: {row['trust']}" if "trust" in row else ""


def kv_text(plan: Plan) -> str:
    """Say what each way to keep keys and values would allow."""
    if not plan.kv_policies:
        return ""
    rows = [
        f"{row['policy']} {row['design']} (loss {row['loss']:.4f}, {format_bytes(row['kv_bytes'])})"
        for row in plan.kv_policies
    ]
    return f"By KV policy: {'; '.join(rows)}. The law does not know what a smaller cache costs in loss"


def edge_text(plan: Plan) -> str:
    """Say on which axes the choice is the last value that was searched."""
    parts = []
    for edge in plan.edge:
        last = {"high": "largest", "low": "smallest"}[edge["side"]]
        limit = "that you allowed" if edge["set_by"] == "you" else "that is searched by default"
        parts.append(f"{edge['axis']} {edge['value']} is the {last} {limit}")
    return f"At an edge: {'; '.join(parts)}; a value beyond it may do better" if parts else ""


def sentences(plan: Plan) -> dict[str, str]:
    """Return the plan in sentences, by subject; a subject with nothing to say is empty."""
    listed = [plan.choice, *plan.rivals()]
    return {
        "answer": answer(plan),
        "costs": costs(plan),
        "confidence": confidence(plan),
        "trust": trust_text(plan.trust),
        "prices": prices(plan),
        "edge": edge_text(plan),
        "kv": kv_text(plan),
        "legend": legend(axis for row in listed for axis in row.extrapolated),
    }


COLUMNS = ("size", "E", "R", "tokens", "loss", "memory", "verdict")
"""Of the table of alternatives, which fits 80 columns."""


def table_row(row: Candidate) -> tuple[str, ...]:
    """Return one line of the table of alternatives."""
    outside = row.extrapolated
    return (
        mark(row.rung, "size" in outside),
        mark(f"{row.experts:g}", "experts" in outside),
        mark(str(row.recurrence), "recurrence" in outside),
        mark(format_count(row.tokens), "tokens" in outside),
        mark(f"{row.loss:.4f}", bool(outside)),
        format_bytes(row.weight_bytes + row.kv_bytes),
        row.verdict,
    )


def short(plan: Plan) -> str:
    """Return the plan on one line, for a terminal."""
    choice, trust = plan.choice, plan.trust
    level = "" if trust is None else f", trust {trust.level}"
    return f"<Plan {choice.label}: loss {choice.loss:.4f} on {format_count(choice.tokens)} tokens{level}>"


def table_html(plan: Plan) -> str:
    """Return the plan for a notebook: the sentences and the table of alternatives."""
    said = sentences(plan)
    lines = [f"<p><b>{escape(said['answer'])}</b></p>"]
    lines += [f"<p>{escape(said[part])}</p>" for part in ("costs", "trust", "confidence", "prices") if said[part]]
    rows = [table_row(row) for row in [plan.choice, *plan.rivals()]]
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return "".join([*lines, f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"])
