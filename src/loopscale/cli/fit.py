"""``loopscale fit``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from loopscale.cli.form import form_options, mapping_option, recipe_option, resamples_option
from loopscale.cli.output import print_json
from loopscale.cli.params import json_option, verbose_option
from loopscale.cli.reading import data_options, take_runs
from loopscale.cli.verbs import verb
from loopscale.core.errors import LoopscaleError
from loopscale.core.progress import progress_bar
from loopscale.core.quantities import format_power
from loopscale.core.report import check_report_path
from loopscale.core.text import WIDTH
from loopscale.fitting import Fit, Scheme, fit, fit_groups


@verb("fit")
@data_options
@mapping_option
@form_options
@recipe_option
@click.option("--starts", type=click.IntRange(1, 10_000), default=8, show_default=True, help="Starts of the search.")
@click.option(
    "--resample",
    "scheme",
    type=click.Choice([*(scheme.value for scheme in Scheme), "none"]),
    default="runs",
    show_default=True,
    help="How to resample for intervals; `paper` is too narrow.",
)
@resamples_option()
@click.option("--group", help="Column of data sets or recipes: fit them together, with shared exponents.")
@click.option("--name", help="What to call the law.  [default: the file's name]")
@click.option("--out", type=click.Path(), help="Save the law, with its resampled laws, as JSON for --law.")
@click.option("--report", type=click.Path(), help="Save a report with figures, as .html or .md.")
@json_option
@verbose_option
def fit_command(
    scheme: str,
    resamples: int,
    group: str | None,
    name: str | None,
    out: str | None,
    report: str | None,
    as_json: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Fit a scaling law to a sweep, with calibrated intervals.

    RUNS is a CSV, TSV, JSONL or Parquet file with a row for each (run, D), a W&B runs table, a folder of Hugging Face
    or TensorBoard runs, `simulated`, the measured `micro` sweep that ships with loopscale, or a public one:
    epoch-chinchilla, clark-routing, isodepth.

    \b
    loopscale fit runs.csv --out law.json --report fit.html
    loopscale plan --flops 5e21 --memory 3GB --bits int4 --law law.json
    loopscale fit micro --mapping bounded
    loopscale fit runs.csv --group recipe --out laws.json
    loopscale fit runs.csv --mapping bounded --fix c=1.35 --columns D=tokens_seen --units D=1B
    """
    if report is not None:
        check_report_path(report)
    if group is not None and report is not None:
        raise click.UsageError("--report shows one law; leave it out with --group")
    observations = take_runs(options, name)
    if group is not None:
        with progress_bar("Refitting resampled data", resamples) as progress:
            how = {"resamples": 0} if scheme == "none" else {"resamples": resamples, "scheme": scheme}
            groups = fit_groups(observations, group, progress=progress, **how, **options)
        if out is not None:
            groups.save(out)
        print_json(groups.to_dict()) if as_json else click.echo(groups.summary(verbose))
        if out is not None and not as_json:
            click.echo(f"\nSaved {out}.\nNext: loopscale plan --flops 5e21 --law {out} --group {next(iter(groups))}")
        return
    result = fit(observations, resamples=0, **options)
    if scheme != "none":
        with progress_bar("Refitting resampled data", resamples) as progress:
            result = result.resample(resamples, scheme=scheme, seed=options["seed"], progress=progress)
    if out is not None:
        result.law.save(out)
    if as_json:
        print_json(result.to_dict())
    else:
        click.echo(result.summary(verbose))
    if report is not None:  # after the summary, which is printed even where a figure cannot be drawn
        from loopscale.figures.reports import fit_report

        fit_report(result).save(report)
    saved = [path for path in (out, report) if path is not None]
    if saved and not as_json:
        follow = "" if out is None else _next_command(result, out)
        line = f"Saved {', '.join(saved)}.   {follow}".rstrip()
        click.echo("\n" + (line if len(line) <= WIDTH else line.replace("   Next", "\nNext")))


def _next_command(result: Fit, path: str) -> str:
    """Return the plan to ask for next: at the largest compute, up to 3x that of any run, that the law answers for."""
    from loopscale.planning import search

    law, largest = replace(result.law, resamples=None), float(result.observations.points.train_flops.max())
    for factor in (3.0, 1.0, 0.3, 0.1, 0.03, 0.01):
        flops = format_power(factor * largest, 1)
        try:
            search(flops=flops, law=law)
        except LoopscaleError:  # too far from the runs, or the fit is degenerate
            continue
        return f"Next: loopscale plan --flops {flops} --law {path}"
    return ""
