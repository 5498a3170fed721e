"""``loopscale forecast``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.form import form_options, mapping_option, recipe_option
from loopscale.cli.output import print_json
from loopscale.cli.params import COUNT, COUNTS, output_options, trust_options, verbose_option
from loopscale.cli.reading import data_options, take_runs
from loopscale.cli.verbs import verb
from loopscale.core.files import is_file
from loopscale.core.progress import progress_bar
from loopscale.fitting.forecasting import forecast

FORM = ("outer", "mapping", "fixed", "bounds", "tie", "delta", "recipe", "seed")
"""Options that the fit takes."""


@verb("forecast")
@data_options
@click.option("--flops", type=COUNTS, help="Training compute: the compute-optimal run of each, like 1e21,1e23.")
@click.option("--params", type=COUNTS, help="N of one run instead, counted as the data count it, like 7e9.")
@click.option("--tokens", type=COUNTS, help="D of that run, like 2T.")
@click.option("--loop-params", type=COUNT, help="N_loop of that run.  [default: the sweep's usual share]")
@click.option("--total-params", type=COUNT, help="N_total of that run.  [default: the sweep's usual ratio]")
@click.option("--experts", type=click.FloatRange(1), help="E: experts for each active one.  [default: the data's]")
@click.option("--recurrence", type=click.IntRange(1), help="R: passes through the loop.  [default: the data's]")
@click.option("--unique-tokens", type=COUNT, help="Different tokens among D, where they are repeated.")
@click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.9,
    show_default=True,
    help="Share of runs that intervals should cover.",
)
@click.option("--figure", type=click.Path(), help="Save a figure of runs, frontier, law and band (.png, .svg, .pdf).")
@mapping_option
@click.option("--resamples", type=click.IntRange(2, 100_000), default=100, show_default=True, help="How many refits.")
@form_options
@recipe_option
@trust_options
@output_options
@verbose_option
def forecast_command(
    runs: str,
    flops: tuple[float, ...] | None,
    params: tuple[float, ...] | None,
    tokens: tuple[float, ...] | None,
    loop_params: float | None,
    total_params: float | None,
    experts: float | None,
    recurrence: int | None,
    unique_tokens: float | None,
    level: float,
    figure: str | None,
    resamples: int,
    extrapolate: bool,
    allow_degenerate: bool,
    as_json: bool,
    as_csv: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Forecast the loss of larger runs, with an interval for one run.

    RUNS is a table of runs, as for `loopscale fit`, or a law file. The (N, D) law and the compute-optimal frontier of
    the same runs give one forecast together.

    \b
    loopscale forecast runs.csv --flops 1e21,1e23
    loopscale forecast runs.csv --params 7e9 --tokens 2T --level 0.8
    loopscale forecast runs.csv --params 2e9 --loop-params 1e9 --recurrence 4 --tokens 400B
    loopscale forecast runs.csv --flops 1e22 --figure forecast.png --verbose
    """
    if flops is None and params is None:
        raise click.UsageError("give --flops, or --params and --tokens")
    options["runs"] = runs
    observations = None if runs.endswith(".json") and is_file(runs) else take_runs(options)
    data = runs if observations is None else observations
    form = {name: value for name, value in options.items() if name in FORM}
    with progress_bar("Refitting resampled data", resamples) as progress:
        result = forecast(
            data, flops=flops, params=params, tokens=tokens, loop_params=loop_params, total_params=total_params,
            experts=experts, recurrence=recurrence, unique_tokens=unique_tokens, level=level, resamples=resamples,
            extrapolate=extrapolate, allow_degenerate=allow_degenerate, progress=progress, **form,
        )  # fmt: skip
    if as_json:
        print_json(result.to_dict())
    elif as_csv:
        click.echo(result.table().csv(), nl=False)
    else:
        click.echo(result.summary(verbose))
    if figure is not None:
        from loopscale.figures.forecast import draw_forecast
        from loopscale.figures.style import save

        save(draw_forecast(result).figure, figure)
