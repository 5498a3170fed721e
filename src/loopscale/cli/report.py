"""``loopscale report``: one self-contained page for a fit, a plan, a sweep or an evaluation."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.reading import read_runs, reading_options
from loopscale.cli.subjects import LAW
from loopscale.cli.verbs import verb
from loopscale.core.report import check_report_path
from loopscale.fitting import fit
from loopscale.planning import Plan
from loopscale.scaling import PUBLISHED, ScalingLaw

KINDS = ("fit", "plan", "sweep", "evaluation")


@verb("report")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("file", type=click.Path())
@reading_options
@click.option("--law", type=LAW, help="The law that a plan used.  [default: the published law that it names]")
@click.option(
    "--out", type=click.Path(), required=True, help="File to write: .html in one piece, or .md with pictures beside it."
)
def report_command(kind: str, file: str, law: ScalingLaw | None, out: str, **reading: Any) -> None:
    """Write a one-page report of a fit, plan, sweep or evaluation.

    \b
    KIND and FILE are
      fit         a sweep (CSV, Parquet), fitted with default settings; `loopscale fit --report` takes options
      plan        a plan that `loopscale plan --out` wrote
      sweep       a sweep, without fitting a law
      evaluation  a table of results: model, recurrence, task, metric, value, and optionally stderr, training_flops

    \b
    loopscale report sweep runs.csv --out sweep.html
    loopscale report fit runs.csv --out fit.html
    loopscale report plan plan.json --out plan.html
    """
    check_report_path(out)
    if law is not None and kind != "plan":
        raise click.UsageError(f"--law goes with a plan, not with a {kind}")
    from loopscale.figures.reports import evaluation_report, fit_report, plan_report, sweep_report
    from loopscale.figures.results import RESULTS, read_table

    if kind == "plan":
        plan = Plan.load(file)
        report = plan_report(plan, law or PUBLISHED.get(plan.law), file)
    elif kind == "evaluation":
        report = evaluation_report(read_table(file, RESULTS), file)
    elif kind == "sweep":
        report = sweep_report(read_runs(file, **reading))
    else:
        report = fit_report(fit(read_runs(file, **reading)))
    report.save(out)
    click.echo(f"Saved {out}.")
