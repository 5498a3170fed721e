"""``loopscale matched``."""

from __future__ import annotations

import click

from loopscale.cli.output import print_json
from loopscale.cli.params import COUNT, law_option, output_options, trust_options
from loopscale.cli.verbs import verb
from loopscale.core.tables import Table
from loopscale.planning import matched
from loopscale.planning.screen import matched_screen
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
    """Compare two designs on equal terms.

    FIRST and SECOND are written RUNG:EXPERTS:RECURRENCE.
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
        click.echo(matched_screen(result))
