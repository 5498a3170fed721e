"""``loopscale backtest``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.form import form_options, mapping_option, recipe_option, resamples_option
from loopscale.cli.output import print_result
from loopscale.cli.params import level_option, output_options, verbose_option
from loopscale.cli.reading import data_options, take_runs
from loopscale.cli.verbs import verb
from loopscale.core.progress import progress_bar
from loopscale.fitting.backtest import DECADES, backtest


@verb("backtest")
@data_options
@click.option(
    "--decades",
    type=click.FloatRange(0, min_open=True),
    default=DECADES,
    show_default=True,
    help="Hide this many decades of the largest training compute.",
)
@click.option("--hold-out", metavar="SLICE", help='Hide these rows instead, like "C>1e21", N>1B, D>400B, R=16 or E=16.')
@level_option
@mapping_option
@resamples_option()
@click.option("--figure", type=click.Path(), help="Save a figure of errors and intervals, as .png, .svg or .pdf.")
@form_options
@recipe_option
@output_options
@verbose_option
def backtest_command(figure: str | None, as_json: bool, as_csv: bool, verbose: bool, **options: Any) -> None:
    """Hide the largest runs, fit the rest, and score the predictions: how far off, and how well covered.

    \b
    loopscale backtest runs.csv
    loopscale backtest runs.csv --hold-out "C>1e21" --keep "D/N >= 20" --figure backtest.png
    """
    observations = take_runs(options)
    with progress_bar("Refitting resampled data", options["resamples"]) as progress:
        result = backtest(observations, rolling=not (as_json or as_csv), progress=progress, **options)
    if figure is not None:
        from loopscale.figures.style import save

        save(result.plot(), figure)
    print_result(result, as_json, as_csv, verbose)
