"""``loopscale forecast``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.form import form_options, mapping_option, recipe_option, resamples_option
from loopscale.cli.output import print_json, print_result
from loopscale.cli.params import (
    level_option,
    output_options,
    run_options,
    seal_options,
    trust_options,
    verbose_option,
)
from loopscale.cli.reading import data_options, take_runs
from loopscale.cli.verbs import verb
from loopscale.core.progress import progress_bar
from loopscale.fitting import Fit, Observations, fit_groups, forecast
from loopscale.fitting.data.again import is_law_file
from loopscale.fitting.data.run_logs import read_log
from loopscale.fitting.groups import groups_of
from loopscale.fitting.registered import check_forecasts, check_text, register_forecasts
from loopscale.fitting.running import RunningForecast, final_loss
from loopscale.scaling import Points, ScalingLaw, find_law
from loopscale.scaling.annealing import KINDS, RateSchedule

FORM = ("outer", "mapping", "fixed", "bounds", "tie", "delta", "recipe", "seed")
"""Options that the fit takes."""


@verb("forecast")
@data_options
@run_options("Training compute: the compute-optimal run of each, like 1e21,1e23.", several=True)
@click.option("--experts", type=click.FloatRange(1), help="E: experts for each active one.  [default: the data's]")
@level_option
@click.option("--figure", type=click.Path(), help="Save a figure of runs, frontier, law and band (.png, .svg, .pdf).")
@click.option("--running", is_flag=True, help="RUNS is the log of a run in training: forecast its final loss.")
@click.option("--steps", type=click.IntRange(1), help="With --running: steps of the whole run.  [default: its own]")
@click.option(
    "--schedule",
    type=click.Choice(KINDS),
    default="cosine",
    show_default=True,
    help="With --running: its learning-rate schedule.",
)
@click.option("--warmup", type=click.IntRange(0), default=0, show_default=True, help="With --running: warm-up steps.")
@click.option(
    "--cooldown",
    type=click.FloatRange(0, 1),
    default=0.2,
    show_default=True,
    help="With --running: share of the steps in which wsd lowers the rate.",
)
@click.option("--column", help="With --running: the column of the loss.")
@click.option("--law", help="With --running: a law that predicts the same run, with --params and --tokens.")
@seal_options("Score a sealed forecast against RUNS, the later runs.")
@click.option("--group", help="Which group: COLUMN=NAME of a table, NAME of a law file from `fit --group`.")
@mapping_option
@resamples_option
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
    register_path: str | None,
    check_path: str | None,
    group: str | None,
    running: bool,
    steps: int | None,
    schedule: str,
    warmup: int,
    cooldown: float,
    column: str | None,
    law: str | None,
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
    loopscale forecast runs.csv --flops 1e22 --register sealed.json
    loopscale forecast later-runs.csv --check sealed.json
    loopscale forecast runs/tiny --running
    loopscale forecast wandb.csv --running --steps 20000 --schedule wsd --cooldown 0.2
    """
    if running:
        rate = None if steps is None else RateSchedule(steps, schedule, warmup, cooldown)
        end = running_forecast(runs, rate, column, law, params, tokens, level)
        print_json(end.to_dict()) if as_json else click.echo(end.summary())
        return
    options["runs"] = runs
    if check_path is not None:
        checked = check_forecasts(check_path, take_runs(options), level)
        print_json(checked) if as_json else click.echo(check_text(checked))
        return
    if flops is None and params is None:
        raise click.UsageError("give --flops, or --params and --tokens")
    data: ScalingLaw | Observations | Fit = find_law(runs, group) if is_law_file(runs) else take_runs(options)
    form = {name: value for name, value in options.items() if name in FORM}
    with progress_bar("Refitting resampled data", resamples) as progress:
        if group is not None and isinstance(data, Observations):
            data, form = _group_fit(data, group, resamples, form), {}
        result = forecast(
            data, flops=flops, params=params, tokens=tokens, loop_params=loop_params, total_params=total_params,
            experts=experts, recurrence=recurrence, unique_tokens=unique_tokens, level=level, resamples=resamples,
            extrapolate=extrapolate, allow_degenerate=allow_degenerate, progress=progress, **form,
        )  # fmt: skip
    if register_path is not None:
        register_forecasts(result, register_path)
    print_result(result, as_json, as_csv, verbose)
    if figure is not None:
        from loopscale.figures.fitting import draw_loss_over_compute, loss_over_compute
        from loopscale.figures.style import save

        seen = None if result.fit is None else result.fit.observations
        table = loss_over_compute(result.law, seen, forecasts=result.forecasts, level=level)
        save(draw_loss_over_compute(table).figure, figure)


def _group_fit(data: Observations, group: str, resamples: int, form: dict[str, Any]) -> Fit:
    """Return the fit of one group, COLUMN=NAME, that shares its exponents with the others."""
    column, _, name = group.partition("=")
    names, _ = groups_of(data, column)
    if name not in names:
        raise click.UsageError(
            f"--group {group} names no group; groups are {', '.join(f'{column}={n}' for n in names)}"
        )
    return fit_groups(data, column, resamples=resamples, **form)[name]


def running_forecast(
    path: str, schedule: RateSchedule | None, column: str | None, law: str | None, params: tuple[float, ...] | None,
    tokens: tuple[float, ...] | None, level: float,
) -> RunningForecast:  # fmt: skip
    """Forecast the end of a run from its log, and from a law where one is given."""
    log = read_log(path, column)
    if law is None:
        return final_loss(log, schedule, level=level)
    if params is None or tokens is None:
        raise click.UsageError("--law predicts a run of --params on --tokens; give both")
    predictor, point = find_law(law), Points(params[0], tokens[0])
    loss = float(predictor(point))
    deviation = None
    if predictor.resamples is not None:
        low, high = predictor.predictive_interval(point) if predictor.spread else predictor.interval(point)
        deviation = float(high - low) / 3.29
    return final_loss(log, schedule, law_loss=loss, law_deviation=deviation, level=level)
