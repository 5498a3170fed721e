"""``loopscale fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loopscale.cli.data import data_options, form_options, read_runs, take_procedure
from loopscale.cli.show import print_json, progress_bar
from loopscale.fit import Recipe, Scheme, fit, resample, summary, values
from loopscale.fit.forms import default_form
from loopscale.fit.summary import law_with_warnings
from loopscale.laws import MAPPINGS
from loopscale.report import check_report_path


@click.command("fit")
@data_options
@click.option(
    "--mapping", type=click.Choice(list(MAPPINGS)), help="Recurrence mapping.  [default: what the data call for]"
)
@form_options
@click.option(
    "--recipe",
    type=click.Choice([each.value for each in Recipe]),
    default="default",
    show_default=True,
    help="default: exact gradients and many starts. paper: the paper's procedure.",
)
@click.option("--starts", type=click.IntRange(1, 10_000), help="Starts of the search.")
@click.option(
    "--resample",
    "scheme",
    type=click.Choice([*(each.value for each in Scheme), "none"]),
    default="runs",
    show_default=True,
    help="How to resample for intervals; `paper` is too narrow.",
)
@click.option("--resamples", type=click.IntRange(2, 100_000), default=100, show_default=True, help="How many refits.")
@click.option("--name", help="What to call the law.  [default: the file's name]")
@click.option("--out", type=click.Path(), help="Save the law, with its resampled laws, as JSON for --law.")
@click.option("--report", type=click.Path(), help="Save a report with figures, as .html or .md.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
def command(
    mapping: str | None,
    outer: str | None,
    recipe: str,
    starts: int | None,
    scheme: str,
    resamples: int,
    name: str | None,
    out: str | None,
    report: str | None,
    as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Fit a scaling law to a sweep, with honest intervals.

    RUNS is a CSV or Parquet file with a row for each (run, D), or `simulated`, or the measured `micro` sweep
    that ships with loopscale, or a public one: epoch-chinchilla, clark-routing, isodepth.

    \b
    loopscale fit runs.csv --out law.json --report fit.html
    loopscale plan --flops 5e21 --memory 3GB --bits int4 --law law.json
    loopscale fit micro --mapping bounded
    loopscale fit runs.csv --mapping bounded --fix c=1.35 --columns D=tokens_seen --units D=1B
    """
    if report is not None:
        check_report_path(report)
    settings = take_procedure(given) | ({} if starts is None else {"starts": starts})
    observations = read_runs(**given)
    form, recurrence = default_form(observations, outer, mapping)
    called = name or Path(given["runs"]).name.split(".")[0]
    found = fit(observations, outer=form, mapping=recurrence, recipe=recipe, name=called, **settings)
    if scheme != "none":
        with progress_bar("Refitting resampled data", resamples) as progress:
            found = resample(found, scheme=scheme, count=resamples, seed=settings["seed"], progress=progress)
    if out is not None:
        law_with_warnings(found).save(out)
    if report is not None:
        from loopscale.figures.reports import fit_report

        fit_report(found).save(report)
    if as_json:
        print_json(values(found))
    else:
        click.echo(summary(found))
