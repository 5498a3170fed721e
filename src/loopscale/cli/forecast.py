"""``loopscale forecast``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.form import form_options, mapping_option, recipe_option, resamples_option
from loopscale.cli.groups import GroupedVerb, option_group
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
ASKED = ("flops", "params", "tokens", "loop_params", "total_params", "experts", "recurrence", "unique_tokens",
         "extrapolate", "allow_degenerate")  # fmt: skip
"""Options that say which loss is asked for."""
RUNNING = ("runs", "steps", "schedule", "warmup", "cooldown", "column", "law", "params", "tokens")
"""Options of a run in training."""


@verb("forecast", cls=GroupedVerb)
@option_group(
    "Which run",
    run_options("Training compute: the compute-optimal run of each, like 1e21,1e23.", several=True),
    click.option("--experts", type=click.FloatRange(1), help="E: experts for each active one.  [default: the data's]"),
    level_option,
    trust_options,
)
@option_group("Reading RUNS", data_options)
@option_group(
    "Fit",
    mapping_option,
    resamples_option(),
    form_options,
    recipe_option,
    click.option("--group", help="Which group: COLUMN=NAME of a table, NAME of a law file from `fit --group`."),
)
@option_group(
    "A run in training",
    click.option("--running", is_flag=True, help="RUNS is the log of a run in training: forecast its final loss."),
    click.option("--steps", type=click.IntRange(1), help="Steps of the whole run.  [default: its own]"),
    click.option(
        "--schedule", type=click.Choice(KINDS), default="cosine", show_default=True, help="Its learning-rate schedule."
    ),
    click.option("--warmup", type=click.IntRange(0), default=0, show_default=True, help="Warm-up steps."),
    click.option(
        "--cooldown",
        type=click.FloatRange(0, 1),
        default=0.2,
        show_default=True,
        help="Share of the steps in which wsd lowers the rate.",
    ),
    click.option("--column", help="The column of the loss."),
    click.option("--law", help="A law that predicts the same run, with --params and --tokens."),
)
@option_group(
    "Output",
    click.option(
        "--figure", type=click.Path(), help="Save a figure of runs, frontier, law and band, as PNG, SVG, PDF."
    ),
    seal_options("Score a sealed forecast against RUNS, the later runs."),
    output_options,
    verbose_option,
    click.help_option("-h", "--help"),
)
def forecast_command(
    level: float,
    figure: str | None,
    register_path: str | None,
    check_path: str | None,
    group: str | None,
    running: bool,
    resamples: int,
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
        end = _running_forecast(level, **{name: options[name] for name in RUNNING})
        print_json(end.to_dict()) if as_json else click.echo(end.summary())
        return
    if check_path is not None:
        checked = check_forecasts(check_path, take_runs(options), level)
        print_json(checked) if as_json else click.echo(check_text(checked))
        return
    if options["flops"] is None and options["params"] is None:
        raise click.UsageError("give --flops, or --params and --tokens")
    data: ScalingLaw | Observations | Fit
    data = find_law(options["runs"], group) if is_law_file(options["runs"]) else take_runs(options)
    asked = {name: options[name] for name in ASKED}
    form = {name: value for name, value in options.items() if name in FORM}
    with progress_bar("Refitting resampled data", resamples) as progress:
        if group is not None and isinstance(data, Observations):
            data, form = _group_fit(data, group, resamples, form), {}
        result = forecast(data, **asked, level=level, resamples=resamples, progress=progress, **form)
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


def _running_forecast(
    level: float,
    *,
    runs: str,
    steps: int | None,
    schedule: str,
    warmup: int,
    cooldown: float,
    column: str | None,
    law: str | None,
    params: tuple[float, ...] | None,
    tokens: tuple[float, ...] | None,
) -> RunningForecast:
    """Forecast the end of a run from its log, and from a law where one is given."""
    log, rate = read_log(runs, column), None if steps is None else RateSchedule(steps, schedule, warmup, cooldown)
    if law is None:
        return final_loss(log, rate, level=level)
    if params is None or tokens is None:
        raise click.UsageError("--law predicts a run of --params on --tokens; give both")
    predictor, point = find_law(law), Points(params[0], tokens[0])
    loss = float(predictor(point))
    deviation = None
    if predictor.resamples is not None:
        low, high = predictor.predictive_interval(point) if predictor.spread else predictor.interval(point)
        deviation = float(high - low) / 3.29
    return final_loss(log, rate, law_loss=loss, law_deviation=deviation, level=level)
