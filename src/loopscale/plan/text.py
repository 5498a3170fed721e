"""A plan in words, as the command line and the explorer say it."""

from __future__ import annotations

from collections.abc import Iterable

from loopscale.laws import ScalingLaw
from loopscale.plan.budget import Rule
from loopscale.plan.plan import Plan
from loopscale.quantities import format_bytes, format_count, format_size

EXTRAPOLATED = "†"
"""Marks a number for which the law is used outside the range it was fitted on."""


def mark(text: str, extrapolated: bool) -> str:
    """Return ``text`` with the sign of extrapolation where it applies."""
    return f"{text}{EXTRAPOLATED}" if extrapolated else text


def legend(axes: Iterable[str]) -> str:
    """Return the line that explains the sign, or nothing when it was not used."""
    found = sorted(set(axes))
    return f"{EXTRAPOLATED} extrapolated: outside the range the law was fitted on ({', '.join(found)})" if found else ""


def answer(found: Plan) -> str:
    """Say what to train, in a sentence."""
    choice = found.choice
    return (
        f"Train {choice.rung} with {choice.experts:g} expert{'s' if choice.experts != 1 else ''} for each active "
        f"one and {choice.recurrence} pass{'es' if choice.recurrence != 1 else ''}, on {format_count(choice.tokens)} "
        f"tokens: loss {mark(f'{choice.loss:.4f}', bool(choice.extrapolated))}"
    )


def costs(found: Plan) -> str:
    """Say what the choice holds and costs."""
    choice, budget = found.choice, found.grid.budget
    weights = f"{format_bytes(choice.weight_bytes)} of weights at {budget.bits:g} bits"
    cache = f" + {format_bytes(choice.kv_bytes)} of KV cache" if choice.kv_bytes else ""
    limit = "" if budget.memory is None else f" (of {format_bytes(budget.memory)})"
    return (
        f"{format_size(choice.active)} active, {format_size(choice.total)} total, {format_size(choice.effective)} "
        f"effective; {weights}{cache}{limit}; {choice.train_flops:.3g} FLOPs of training, "
        f"{choice.inference_flops:.3g} a generated token"
    )


def certainty(found: Plan) -> str:
    """Say on which law and rule the choice rests, and how sure it is."""
    grid = found.grid
    rule = f"eps {grid.eps:g}" if grid.rule is Rule.PAPER else "lowest loss alone"
    said = f"{law_in_words(found.law)}, {rule}"
    if found.lead is not None:
        close = ", less than eps: a toss-up" if found.lead < grid.eps else ""
        said += f"; lead over the next admissible design {found.lead:.4f}{close}"
    if found.agreement is None:
        return said
    votes = ", ".join(f"{each.label} {share:.0%}" for each, share in found.votes()[:4])
    return f"{said}; {found.agreement:.0%} of resampled laws agree ({votes})"


def law_in_words(law: ScalingLaw) -> str:
    """Name the law as results should: published ones by name, files by the name inside."""
    resampled = "" if law.resamples is None else f" with {len(law.resamples)} resampled laws"
    return f"law {law.name}{resampled}"
