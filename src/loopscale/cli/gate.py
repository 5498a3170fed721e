"""``loopscale gate``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.form import resamples_option
from loopscale.cli.output import print_result
from loopscale.cli.params import level_option, output_options, verbose_option
from loopscale.cli.reading import data_options, read_runs, take_runs
from loopscale.cli.verbs import verb
from loopscale.fitting.data.again import CHOICES
from loopscale.fitting.variants import RESAMPLES, gate, is_law


@verb("gate")
@data_options
@click.option("--against", required=True, help="The baseline: a table of runs, a law file, or a law by name.")
@click.option("--against-keep", metavar="EXPRESSION", help="Rows of the baseline to use, as --keep for the variant.")
@level_option
@click.option("--outer", help="Form of the baseline's law.  [default: chinchilla]")
@resamples_option(RESAMPLES, most=10_000)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the refits.")
@output_options
@verbose_option
def gate_command(
    against: str,
    against_keep: str | None,
    level: float,
    outer: str | None,
    resamples: int,
    seed: int,
    as_json: bool,
    as_csv: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Test whether a change helps: the speedup of one sweep over another.

    RUNS is the variant. Prints its speedup over the baseline, and whether the speedup grows with scale.

    Each run is compared with a baseline run of the same compute and tokens: how much more compute would the baseline
    need for the same loss? With a column tokens_per_second on both sides the wall clock is compared too.

    \b
    loopscale gate variant.csv --against baseline.csv
    loopscale gate variant.csv --against law.json --level 0.8
    loopscale gate all.csv --keep "recipe == 'new'" --against all.csv --against-keep "recipe == 'old'"
    """
    reading = {name: options[name] for name in (*CHOICES, "simulated_recurrence")}
    name = options["runs"]
    variant = take_runs(options)
    if name == against and against_keep is None:
        raise click.UsageError("the variant and the baseline are the same runs; choose them by --against-keep")
    base = against if is_law(against) else read_runs(against, **{**reading, "keep": against_keep})
    result = gate(variant, base, level=level, resamples=resamples, seed=seed, outer=outer)
    print_result(result, as_json, as_csv, verbose)
