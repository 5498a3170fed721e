"""``loopscale laws``."""

from __future__ import annotations

import click

from loopscale.cli.options import LAW
from loopscale.cli.show import console, print_json, print_table
from loopscale.laws import AXES, BILLIONS, PUBLISHED, ScalingLaw
from loopscale.quantities import format_count


@click.command("laws")
@click.argument("law", type=LAW, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a law file for LAW, or all of them by name.")
def command(law: ScalingLaw | None, as_json: bool) -> None:
    """List the published laws, or show one (by name or file).

    \b
    loopscale laws
    loopscale laws looped-moe-2026
    loopscale laws chinchilla-2022 --json > law.json    # then edit, and --law law.json
    """
    if as_json:
        print_json(law.to_dict() if law else {name: each.to_dict() for name, each in PUBLISHED.items()})
    elif law is None:
        _list()
    else:
        _one(law)


def _list() -> None:
    columns = ("name", "outer law", "recurrence", "counts", "size", "tokens", "experts", "R", "RMSE")
    rows = [
        (
            law.name,
            law.outer.name,
            law.mapping.name,
            law.counts.value.replace("-embeddings", ""),
            *(_span(law, axis) for axis in AXES),
            "" if law.rmse is None else f"{law.rmse:g}",
        )
        for law in PUBLISHED.values()
    ]
    print_table("Published laws: what they were fitted on", columns, rows, left=columns[:4])
    console().print(
        "counts: parameters with or without embeddings. `loopscale laws NAME` shows coefficients and source."
    )


def _one(law: ScalingLaw) -> None:
    out = console()
    out.print(f"[bold]{law.name}[/]: {law.form}", highlight=False)
    out.print(f"source  {law.source or 'not stated'}", highlight=False)
    if law.note:
        out.print(f"note    {law.note}", highlight=False)
    scale = "billions" if law.units == BILLIONS else f"{law.units.parameters:g} and {law.units.tokens:g}"
    out.print(f"units   N and D in {scale}; parameters {law.counts.value.replace('-', ' ')}", highlight=False)
    out.print("range   " + "; ".join(f"{axis} {_span(law, axis)}" for axis in AXES), highlight=False)
    rows = [(term.name, f"{law.coefficients[term.name]:g}", term.meaning) for term in law.terms]
    print_table("", ("coefficient", "value", "meaning"), rows, left=("coefficient", "meaning"))
    if law.rmse is not None:
        out.print(f"RMSE {law.rmse:g} nats", highlight=False)


def _span(law: ScalingLaw, axis: str) -> str:
    low, high = getattr(law.fitted_range, axis)
    if low is None and high is None:
        return "not stated"
    ends = ["?" if each is None else format_count(each, 2) for each in (low, high)]
    return ends[0] if ends[0] == ends[1] else "–".join(ends)
