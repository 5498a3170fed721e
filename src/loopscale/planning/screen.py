"""A plan, a prediction and a comparison of two designs on one screen: the answer, a few facts and a short table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from loopscale.core.quantities import decimals, format_bytes, format_count, format_power
from loopscale.core.text import WIDTH, fact, text_table
from loopscale.planning.budget import FIELDS
from loopscale.planning.design import Design, card_size, experts_text
from loopscale.planning.intervals import no_interval_text
from loopscale.planning.limits import DEVICES
from loopscale.planning.text import (
    BEYOND,
    bits_text,
    by_loss,
    edge_text,
    frontier_text,
    growth_text,
    legend,
    mark,
    share_text,
    short_trust,
)

if TYPE_CHECKING:
    from loopscale.planning.matching import Matched
    from loopscale.planning.plans import Plan
    from loopscale.planning.predictions import Prediction

SCREEN = 22
"""Lines that a screen leaves beside the prompt."""
FEWEST = 2
"""Alternatives that are shown however much else there is to say."""
BAR, SHORT_BAR = 20, 14
"""Columns of the bar of memory; the shorter one leaves room for the parts."""
SHORT_LABELS = {"flops": "compute", "max_tokens": "tokens"}
SAVE_HINT = "More: --verbose. Save: --out plan.json, --report plan.html, --train run.toml"


def plan_screen(
    plan: Plan, rivals: Sequence[Design], grow: bool = False, extrapolate: bool = False,
    asked: Mapping[str, str] = MappingProxyType({}), ending: str = SAVE_HINT,
) -> str:  # fmt: skip
    """Return the plan on one screen; ``grow`` says that passes were allowed to grow during training.

    ``asked`` are further facts by label, ``ending`` is the last line. Losses more than 10x beyond the law's data are
    left out of the table unless ``extrapolate``.
    """
    choice = plan.choice
    head = [f"Train {headline(choice)}", ""]
    for label, text in (plan_facts(plan, grow) | dict(asked)).items():
        head += fact(label, text)
    tail = [*_tail(plan), *wrap(ending, WIDTH, break_on_hyphens=False)]
    room = max(SCREEN - len(head) - len(tail) - 4, FEWEST)
    following = next((row for row in by_loss(rivals) if row.ruled_out_by is None), None)
    first = [] if following is None else [following]
    shown = by_loss([*first, *(row for row in rivals if row is not following)][:room])
    table = text_table(
        ALTERNATIVES,
        [_alternative(row, choice, extrapolate) for row in shown],
        left=("Nearest designs", "ruled out by"),
    )
    note = legend(axis for row in (choice, *shown) for axis in row.extrapolated)
    return "\n".join([*head, "", table, *([note] if note else []), *tail])


def plan_facts(plan: Plan, grow: bool = False) -> dict[str, str]:
    """Return what to know about the choice, by label."""
    choice = plan.choice
    unspent = f"; {format_power(plan.unspent_flops)} unspent" if plan.unspent_flops else ""
    facts = {
        "loss": _loss_text(choice, plan.interval, no_interval_text(plan.trust.level, plan.uncertainty)),
        **({"frontier": frontier_text(plan.frontier)} if plan.frontier else {}),
        "size": _size(choice),
        "memory": _memory(plan),
        "training": f"{training_text(choice)}{unspent}",
    }
    facts |= {"growth": growth_text(plan.growth, plan.eps)} if grow else {}
    facts |= {"devices": plan.devices.text(brief=True)} if plan.devices else {}
    if choice.tokens_per_second is not None:
        facts["speed"] = f"at most {format_count(choice.tokens_per_second)} tokens/s for one sequence"
    return facts | {"trust": short_trust(plan.trust), "choice": _certainty(plan)}


ALTERNATIVES = ("Nearest designs", "tokens", "loss", "difference", "memory", "ruled out by")


def headline(design: Design) -> str:
    """Name a design: "1.0B MoE · 2 of 16 experts · looped 2x · 589B tokens"."""
    kind = f"{card_size(design.total_parameters)} dense model"
    if design.experts_total > 1:
        experts = experts_text(design.experts_active, design.experts_total)
        kind = f"{card_size(design.active_parameters)} MoE · {experts}"
    looped = f"looped {design.recurrence}x" if design.recurrence > 1 else "not looped"
    return f"{kind} · {looped} · {format_count(design.tokens)} tokens"


def _loss_text(design: Design, interval: Any, otherwise: str) -> str:
    """State the loss with the digits that its interval deserves, and say whether that is of a run or of the curve."""
    outside = bool(design.extrapolated)
    if interval is None:
        return f"{mark(f'{design.loss:.4f}', outside)} nats/token; {otherwise}"
    low, high = interval["low"], interval["high"]
    digits = decimals((high - low) / 2)
    return f"{mark(f'{design.loss:.{digits}f}', outside)} nats/token   {_interval(interval, digits)}"


def _interval(interval: Mapping[str, Any], digits: int) -> str:
    of = "for one run" if interval["kind"] == "predictive" else "of the curve, not of a run"
    return f"{interval['level']:.0%} {of}: {interval['low']:.{digits}f}–{interval['high']:.{digits}f}"


def _size(design: Design) -> str:
    worth = f" (as good as {card_size(design.effective_parameters)} without looping)" if design.recurrence > 1 else ""
    if design.experts_total == 1:
        return f"{card_size(design.total_parameters)}{worth}"
    return f"{card_size(design.total_parameters)} total, {card_size(design.active_parameters)} active{worth}"


def _memory(plan: Plan) -> str:
    choice, budget = plan.choice, plan.budget
    parts = f"{format_bytes(choice.weight_bytes)} weights + {format_bytes(choice.kv_bytes)} KV cache"
    made_of = f" ({parts})" if choice.kv_bytes else f" of weights at {budget.bits:g} bits"
    if budget.memory is None:
        return f"{format_bytes(choice.memory)}{made_of}"
    length = SHORT_BAR if choice.kv_bytes else BAR
    filled = round(length * min(choice.memory / budget.memory, 1.0))
    bar = "█" * filled + "░" * (length - filled)
    made_of = f"   {parts.removesuffix(' cache')}" if choice.kv_bytes else f"   {budget.bits:g}-bit weights"
    return f"{format_bytes(choice.memory)} of {format_bytes(budget.memory)}   {bar}{made_of}"


def training_text(design: Design) -> str:
    """Say what training computes: as the paper counts, and with all that it leaves out."""
    real = design.real_train_flops
    counted = "" if real is None else f" ({format_power(real)} with head, attention and padding)"
    return f"{format_power(design.train_flops)} FLOPs by 6ND{counted}"


def _certainty(plan: Plan) -> str:
    """Say how clear the choice is: its lead, and how many resampled laws agree."""
    parts = []
    if (sizes := plan.tied_sizes) is not None:
        parts.append(f"any size from {card_size(sizes[0])} to {card_size(sizes[1])} is a tie")
    elif plan.lead is None:
        parts.append("no other design is allowed")
    elif plan.lead < plan.eps:
        parts.append(f"a tie: {plan.lead:.4f} ahead of the next allowed, less than {plan.eps:.2g}")
    else:
        parts.append(f"{plan.lead:.4f} ahead of the next allowed (fit error {plan.eps:.2g})")
    if plan.agreement is not None:
        share = next((vote.share for vote in plan.votes if vote.design == plan.choice.label), 0.0)
        refits = f"{share_text(plan.agreement, plan.resamples)} refits"
        if plan.tied_sizes is not None:
            parts.append(f"near-optimal in {refits}")
        elif share == 1:
            parts.append(f"{refits} pick it")
        else:
            parts.append(f"near-optimal in {refits}, {round(share * plan.resamples)} pick it")
    return "; ".join(parts)


def _alternative(row: Design, choice: Design, extrapolate: bool) -> tuple[str, ...]:
    outside, stated = row.extrapolated, extrapolate or row.trust != "beyond"
    ruled_out_by = {
        None: "", "pass": f"pass {row.recurrence} gains too little", "experts": "experts gain too little",
        DEVICES: "training devices",
    }  # fmt: skip
    by = row.ruled_out_by
    return (
        mark(row.label, bool({"size", "experts", "recurrence"} & set(outside))),
        mark(format_count(row.tokens), "tokens" in outside),
        mark(f"{row.loss:.4f}", bool(outside)) if stated else "",
        f"{row.loss - choice.loss:+.4f}" if stated else BEYOND,
        format_bytes(row.memory),
        ruled_out_by[by] if by in ruled_out_by else FIELDS[str(by)].label,
    )


def _tail(plan: Plan) -> list[str]:
    gains = []
    for row in (row for row in plan.sensitivities if row.binds):
        label = SHORT_LABELS.get(row.limit, FIELDS[row.limit].label)
        saved = BEYOND if row.trust == "beyond" else f"{-row.saved:+.3f}"
        gains.append(f"{'2x' if row.factor > 1 else 'half'} {label} → {saved}")
    lines = wrap("   ".join(gains[:3]), WIDTH) if gains else []
    lines += wrap(edge_text(plan), WIDTH, subsequent_indent="  ")
    better = plan.next_best
    if better is not None and better.fits_with is not None:
        text = (
            f"Nearly fits: {better.design}, loss {better.loss - plan.choice.loss:+.4f}; it does with {better.fits_with}"
        )
        lines += wrap(text, WIDTH, subsequent_indent="  ")
    notes = [] if plan.budget.bits >= 16 else ["Losses are of unquantised weights"]
    notes += [] if plan.at_real_bits is None else [bits_text(plan.at_real_bits)]
    lines += wrap("; ".join(notes), WIDTH, subsequent_indent="  ")
    return lines


def prediction_screen(prediction: Prediction) -> str:
    """Return the prediction on one screen."""
    design, interval = prediction.design, prediction.interval
    outside = set(design.extrapolated)
    digits = 4 if interval is None else decimals((interval["high"] - interval["low"]) / 2)
    answer = f"{mark(f'{prediction.loss:.{digits}f}', bool(outside))} nats/token"
    if interval is not None:
        answer += f"   {_interval(interval, digits)}"
    name = "" if headline(design).startswith(f"{design.rung} ") else f"{design.rung}: "
    lines = [answer, "", *fact("model", f"{name}{headline(design)}"), *fact("size", _size(design))]
    if design.recurrence > 1:
        limit = prediction.largest_multiplier
        most = "has no limit" if limit is None else f"stays below {limit:.2f}x the active parameters"
        lines += fact("looping", f"the gain from more passes {most}")
    lines += fact("training", training_text(design))
    lines += fact("devices", prediction.devices.text(brief=True)) if prediction.devices else []
    lines += fact("inference", f"{format_power(design.inference_flops)} FLOPs per generated token by 2N")
    lines += fact("trust", short_trust(prediction.trust))
    why = "" if interval else f"; {no_interval_text(prediction.trust.level, prediction.uncertainty)}"
    lines += fact("law", f"{prediction.law}{why}")
    return "\n".join([*lines, *([legend(outside)] if outside else [])])


def matched_screen(result: Matched) -> str:
    """Return the comparison of two designs on one screen."""
    rows = [
        (
            row["condition"],
            *(
                f"{card_size(row[f'{side}_active'])} {'' if (loss := row[f'{side}_loss']) is None else f'{loss:.4f}'}"
                for side in ("first", "second")
            ),
            BEYOND if row["difference"] is None else f"{row['difference']:+.4f}",
            "" if row["low"] is None else f"{row['low']:+.4f} to {row['high']:+.4f}",
        )
        for row in result.rows
    ]
    columns = ("matched by", result.first, result.second, "difference", "90% interval")
    lines = [*wrap(_matched_answer(result), WIDTH), "", text_table(columns, rows, left=("matched by",)), ""]
    lines += fact("columns", f"active parameters and loss after {format_power(result.flops)} FLOPs; difference is "
                  "first minus second, so minus means that the first has the lower loss")  # fmt: skip
    of = {row["condition"]: row["interval"] for row in result.rows if row["interval"]}
    if of:
        several = "; ".join(f"{name}: {interval}" for name, interval in of.items())
        lines += fact("intervals", f"of {next(iter(of.values()))}" if len(set(of.values())) == 1 else several)
    lines += fact("trust", short_trust(result.trust))
    if any(row["difference"] is None for row in result.rows):
        lines += fact("", "no answer more than 10x beyond the law's data; --extrapolate shows it")
    return "\n".join(lines)


def _matched_answer(result: Matched) -> str:
    if result.compute is None:
        return "At equal loss the two are more than 20x apart in compute."
    span = result.compute_interval
    interval = "" if span is None else f" (90%: {span[0]:.3g}x to {span[1]:.3g}x)"
    return f"At equal loss, {result.second} needs {result.compute:.3g}x the compute of {result.first}{interval}."
