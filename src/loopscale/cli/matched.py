"""``loopscale matched``."""

from __future__ import annotations

import click

from loopscale.cli.output import console, print_json, print_table
from loopscale.cli.params import COUNT, law_option, output_options, trust_options
from loopscale.cli.verbs import verb
from loopscale.core.quantities import format_power
from loopscale.core.tables import Table
from loopscale.planning import Matched, matched
from loopscale.planning.design import card_size
from loopscale.planning.text import trust_text
from loopscale.scaling import ScalingLaw


@verb("matched")
@click.argument("first")
@click.argument("second")
@click.option("--flops", type=COUNT, required=True, help="Training compute of both, like 5e21.")
@law_option
@trust_options
@output_options
def matched_command(
    first: str,
    second: str,
    flops: float,
    law: ScalingLaw,
    extrapolate: bool,
    allow_degenerate: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Compare two designs on equal terms; each is written RUNG:EXPERTS:RECURRENCE.

    Looped against not, or sparse against dense: at equal training FLOPs, then also at equal total parameters, at equal
    KV memory, and at all of them; and how much more compute the second needs to reach the loss of the first.

    \b
    loopscale matched 0.3B:8:4 0.6B:8:1 --flops 1e22
    loopscale matched 1.0B:8:1 1.0B:1:1 --flops 5e21 --json
    """
    result = matched(first, second, flops, law, extrapolate=extrapolate, allow_degenerate=allow_degenerate)
    if as_json:
        print_json({"kind": "matched", **result.to_dict()})
    elif as_csv:
        click.echo(Table.from_records(result.rows).csv(), nl=False)
    else:
        _print(result)


def _loss_text(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.4f}"


def _print(result: Matched) -> None:
    rows = [
        (
            row["condition"],
            f"{card_size(row['first_active'])} {_loss_text(row['first_loss'])}",
            f"{card_size(row['second_active'])} {_loss_text(row['second_loss'])}",
            "withheld" if row["difference"] is None else f"{row['difference']:+.4f}",
            "" if row["low"] is None else f"{row['low']:+.4f} to {row['high']:+.4f}",
        )
        for row in result.rows
    ]
    title = f"Active parameters and loss after {format_power(result.flops)} FLOPs, equal in"
    print_table(title, ("", result.first, result.second, "difference", "90% interval"), rows, left=("",))
    out = console()
    if result.compute is None:
        out.print("At equal loss the two are more than 20x apart in compute.", highlight=False)
    else:
        span = result.compute_interval
        interval = "" if span is None else f" (90% interval {span[0]:.3g}x to {span[1]:.3g}x)"
        out.print(
            f"At equal loss, each at its own best size, the second kind needs {result.compute:.3g}x the compute of the "
            f"first{interval}",
            highlight=False,
        )
    out.print(trust_text(result.trust), highlight=False)
    if any(row["difference"] is None for row in result.rows):
        out.print(
            "Withheld: a size that lies more than 10x beyond what the law was fitted on; --extrapolate shows it",
            highlight=False,
        )
