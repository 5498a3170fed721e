"""The one place that refuses an answer: too far from the data, a degenerate law, or a variable that the law lacks."""

from __future__ import annotations

from collections.abc import Callable

from loopscale.core.errors import InputError
from loopscale.core.quantities import format_count
from loopscale.core.tables import Table
from loopscale.planning.budget import Budget
from loopscale.scaling import ScalingLaw, Trust
from loopscale.scaling.variables import REFIT, WithheldError, check_variables, why_degenerate

__all__ = ["WithheldError", "check_answer", "check_budget", "check_tokens", "check_variables", "withheld"]


def check_answer(
    what: str,
    law: ScalingLaw,
    trust: Trust,
    *,
    extrapolate: bool = False,
    allow_degenerate: bool = False,
    searched: bool = False,
    instead: Callable[[], str] = str,
) -> None:
    """Refuse an answer about ``what`` that lies far beyond the law's data, or that rests on a degenerate law.

    ``searched`` says that other designs could be the answer, so that a limit on the search helps too; ``instead`` names
    the best of them.
    """
    problems, overrides, remedies = [], [], []
    if law.degenerate and not allow_degenerate:
        problems.append(why_degenerate(law))
        overrides.append("allow_degenerate")
        remedies.append(REFIT)
    if trust.level == "beyond" and not extrapolate:
        axes = [axis for axis, factor in trust.factors.items() if factor > 10]
        reasons = [reason for reason in trust.reasons if set(reason.partition(" is ")[0].split()) & set(axes)]
        problems.append(
            f"no answer: {what} is more than 10x beyond the runs behind law {law.name}: {'; '.join(reasons)}{instead()}"
        )
        overrides.append("extrapolate")
        most = law.fitted_range.tokens[1]
        nearer = f"measure runs nearer to it first along {' and '.join(axes)} (`loopscale next` chooses them)"
        if searched and axes == ["tokens"] and most is not None:
            nearer = f"set `max_tokens` to {format_count(10 * most)} for the best design within 10x, {nearer}"
        remedies.append(nearer)
    if problems:
        raise WithheldError(". ".join(problems), overrides, " and ".join(remedies))


def check_budget(budget: Budget) -> None:
    """Refuse a setting that changes nothing because what it counts with is not set: a context without memory."""
    for name, others in budget.idle().items():
        needed = " or ".join(f"`{other}`" for other in others)
        raise InputError(f"`{name}` changes nothing alone", remedy=f"give {needed} with it")


def check_tokens(tokens: float) -> float:
    """Return the tokens that compute pays for; less than one is refused."""
    if tokens < 1:
        raise InputError(
            f"the compute pays for {tokens:.3g} tokens of this model, less than one", field="flops",
            remedy="give more compute or a smaller model",
        )  # fmt: skip
    return tokens


def withheld(table: Table) -> Table:
    """Return a table of designs without the losses that lie more than 10x beyond the law's data."""
    beyond = [level == "beyond" for level in table.columns["trust"]]
    hidden = {
        name: [None if out else value for out, value in zip(beyond, column, strict=True)]
        for name, column in table.columns.items()
        if name.startswith("loss") or name == "best"
    }
    return Table({**table.columns, **hidden})
