"""``loopscale report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from loopscale.cli.data import read_runs, reading_options
from loopscale.cli.options import LAW
from loopscale.files import read_json
from loopscale.laws import PUBLISHED, ScalingLaw
from loopscale.report import check_report_path

if TYPE_CHECKING:
    from loopscale.report import Report

KINDS = ("fit", "plan", "sweep", "evaluation")


@click.command("report")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("file", type=click.Path())
@reading_options
@click.option("--law", type=LAW, help="The law that a plan trusts.  [default: the published law it names]")
@click.option("--out", type=click.Path(), required=True, help="The page to write: .html in one file, or .md.")
def command(kind: str, file: str, law: ScalingLaw | None, out: str, **reading: Any) -> None:
    """Write one page for a fit, a plan, a sweep or an evaluation; nothing in it is fetched from elsewhere.

    \b
    KIND and FILE are
      fit         a sweep (CSV, Parquet), fitted here with default settings; `loopscale fit --report` has them all
      plan        a plan that `loopscale plan --out` wrote
      sweep       a sweep, before any law is fitted
      evaluation  a table of results: model, recurrence, task, metric, value, and stderr, training_flops where known

    \b
    loopscale report sweep runs.csv --out sweep.html
    loopscale report fit runs.csv --out fit.html
    loopscale report plan plan.json --out plan.html
    """
    check_report_path(out)
    if law is not None and kind != "plan":
        raise click.UsageError(f"--law goes with a plan, not with a {kind}")
    if kind == "plan":
        made = _plan(file, law)
    elif kind == "evaluation":
        made = _evaluation(file)
    else:
        made = _runs(kind, file, reading)
    made.save(out)
    click.echo(f"Saved {out}.")


def _runs(kind: str, file: str, reading: dict[str, Any]) -> Report:
    from loopscale.figures.reports import fit_report, sweep_report
    from loopscale.fit import fit, resample
    from loopscale.fit.forms import default_form

    observations = read_runs(file, **reading)
    if kind == "sweep":
        return sweep_report(observations)
    outer, mapping = default_form(observations, None, None)
    return fit_report(resample(fit(observations, outer=outer, mapping=mapping)))


def _plan(file: str, law: ScalingLaw | None) -> Report:
    from loopscale.figures.reports import plan_report

    plan = read_json(file)
    named = plan.get("law") if isinstance(plan, dict) else None
    return plan_report(plan, law or PUBLISHED.get(str(named)), file)


def _evaluation(file: str) -> Report:
    from loopscale.figures.reports import evaluation_report
    from loopscale.figures.results import RESULTS, read_table

    return evaluation_report(read_table(file, RESULTS), file)
