"""``loopscale compare``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.form import form_options, recipe_option, resamples_option
from loopscale.cli.output import print_json
from loopscale.cli.params import output_options, verbose_option
from loopscale.cli.reading import data_options, take_runs
from loopscale.cli.verbs import verb
from loopscale.fitting.compare import compare
from loopscale.scaling import MAPPINGS


@verb("compare")
@data_options
@click.option(
    "--hold-out", "slices", multiple=True, metavar="SLICE", help="Rows to predict unseen, like R=16 or D>400B."
)
@click.option(
    "--mapping", multiple=True, type=click.Choice(list(MAPPINGS)), help="Mappings, `none` beside them.  [default: all]"
)
@click.option(
    "--folds", type=click.IntRange(0, 1000), default=5, show_default=True, help="Cross-validation by run; 0 for none."
)
@resamples_option(1000, least=10, text="Refits behind the intervals of the differences.")
@form_options
@recipe_option
@output_options
@verbose_option
def compare_command(
    slices: tuple[str, ...],
    mapping: tuple[str, ...],
    resamples: int,
    as_json: bool,
    as_csv: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Compare recurrence mappings on rows held out from the fit.

    \b
    loopscale compare runs.csv --hold-out R=16 --hold-out E=16 --hold-out "N>0.9B" --hold-out "D>400B"
    loopscale compare isodepth --hold-out R=8
    """
    observations = take_runs(options)
    result = compare(observations, slices, mappings=mapping or None, count=resamples, **options)
    if as_json:
        rows = list(result.table().records())
        facts = {
            "source": result.source,
            "outer": result.outer,
            "warnings": [warning.problem for warning in result.warnings],
        }
        print_json({"kind": "comparison", **facts, "rows": rows})
    elif as_csv:
        click.echo(result.table().csv(), nl=False)
    else:
        click.echo("\n".join([result.summary(verbose), *(observations.notes if verbose else observations.skipped)]))
