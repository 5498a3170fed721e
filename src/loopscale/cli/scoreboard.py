"""``loopscale scoreboard``."""

from __future__ import annotations

from dataclasses import asdict

import click

from loopscale.cli.output import print_json
from loopscale.cli.params import level_option, output_options
from loopscale.cli.verbs import verb
from loopscale.fitting.scoreboard import averages, scoreboard, scoreboard_table, scoreboard_text


@verb("scoreboard")
@click.option("--decades", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True,
              help="Decades of the largest compute to hide.")  # fmt: skip
@level_option
@output_options
def scoreboard_command(decades: float, level: float, as_json: bool, as_csv: bool) -> None:
    """Score forecasts on public sweeps: their largest runs hidden.

    Each sweep is read from LOOPSCALE_DATA or downloaded; its top decade of compute is hidden and forecast.

    \b
    loopscale scoreboard
    loopscale scoreboard --decades 1.5 --json
    """
    entries, left_out = scoreboard(decades=decades, level=level)
    if as_json:
        rows = [asdict(entry) | {"covered": entry.covered} for entry in entries]
        print_json({"kind": "scoreboard", "entries": rows, "averages": averages(entries), "left_out": list(left_out)})
    elif as_csv:
        click.echo(scoreboard_table(entries).csv(), nl=False)
    else:
        click.echo(scoreboard_text(entries, left_out))
