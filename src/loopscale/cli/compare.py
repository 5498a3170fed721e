"""``loopscale compare``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.data import data_options, form_options, read_runs, take_procedure
from loopscale.cli.options import output_options
from loopscale.cli.show import console, print_json
from loopscale.fit.holdout import compare, differences, table
from loopscale.laws import MAPPINGS


@click.command("compare")
@data_options
@click.option(
    "--hold-out", "slices", multiple=True, metavar="SLICE", help="Rows to predict unseen, like R=16 or D>400B."
)
@click.option(
    "--mapping", "mappings", multiple=True, type=click.Choice(list(MAPPINGS)), help="Mappings.  [default: all]"
)
@click.option(
    "--folds", type=click.IntRange(0, 1000), default=5, show_default=True, help="Cross-validation by run; 0 for none."
)
@click.option(
    "--resamples",
    type=click.IntRange(10, 100_000),
    default=1000,
    show_default=True,
    help="For the differences' intervals.",
)
@form_options
@output_options
def command(
    slices: tuple[str, ...],
    mappings: tuple[str, ...],
    folds: int,
    resamples: int,
    outer: str | None,
    as_json: bool,
    as_csv: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Compare recurrence mappings on rows that they were not fitted to.

    \b
    loopscale compare runs.csv --hold-out R=16 --hold-out E=16 --hold-out "N>0.9B" --hold-out "D>400B"
    loopscale compare isodepth --hold-out R=8
    """
    settings = take_procedure(given)
    observations = read_runs(**given)
    found = compare(
        observations, slices, outer=outer, mappings=mappings or None, folds=folds, count=resamples, **settings
    )
    if as_json:
        rows = list(found.table().records())
        print_json({"kind": "comparison", "source": found.source, "outer": found.outer, "rows": rows})
    elif as_csv:
        click.echo(found.table().csv(), nl=False)
    else:
        out = console()
        for note in (*observations.notes, *found.notes):
            out.print(note, highlight=False)
        out.print(table(found), differences(found), sep="\n")
