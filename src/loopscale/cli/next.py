"""``loopscale next``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.choosing import Goal, Target, ladder_candidates, next_runs, read_candidates
from loopscale.choosing.choose import MOST_RUNS
from loopscale.cli.form import form_options, mapping_option
from loopscale.cli.output import print_json
from loopscale.cli.params import COUNT, COUNTS, EXPERTS, INTEGERS, RUNG_LIST, WHOLE, output_options, verbose_option
from loopscale.cli.reading import data_options, take_runs
from loopscale.cli.verbs import verb
from loopscale.fitting import fit


@verb("next")
@data_options
@click.option("--budget", type=COUNT, required=True, help="FLOPs for new runs, like 1e20.")
@click.option(
    "--for",
    "plan_path",
    type=click.Path(),
    required=True,
    help="The plan to make more certain: a file of `loopscale plan --out`.",
)
@click.option(
    "--goal",
    type=click.Choice([goal.value for goal in Goal]),
    default=Goal.CHOICE.value,
    show_default=True,
    help="choice: the differences to its rivals. predictions: its losses.",
)
@click.option("--rung", "rungs", type=RUNG_LIST, help="Rungs to choose from.  [default: near the data's sizes]")
@click.option("--experts", type=EXPERTS, help="Expert counts to choose from.")
@click.option("--recurrence", "recurrences", type=INTEGERS, help="Recurrences to choose from.")
@click.option(
    "--tokens", type=COUNTS, help="Token counts to choose from.  [default: half the least to twice the most seen]"
)
@click.option("--min-ratio", type=COUNT, help="Least tokens per parameter.  [default: the least in the data]")
@click.option("--max-ratio", type=COUNT, help="Most tokens per parameter.  [default: the most in the data]")
@click.option("--candidates", type=click.Path(), help="A table of runs to choose from instead, with N, D and cost.")
@click.option("--most", type=WHOLE, default=MOST_RUNS, show_default=True, help="The most runs to choose.")
@mapping_option
@click.option(
    "--resamples",
    type=click.IntRange(0, 1000),
    default=16,
    show_default=True,
    help="Refits to average over; 0 for none.",
)
@form_options
@output_options
@verbose_option
def next_command(
    budget: float,
    plan_path: str,
    goal: str,
    rungs: tuple[str, ...] | None,
    experts: tuple[float, ...] | None,
    recurrences: tuple[int, ...] | None,
    tokens: tuple[float, ...] | None,
    min_ratio: float | None,
    max_ratio: float | None,
    candidates: str | None,
    most: int,
    as_json: bool,
    as_csv: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Choose the runs to train next: those that reduce the uncertainty of a plan most per FLOP.

    \b
    loopscale plan --flops 5e21 --memory 3GB --bits int4 --law law.json --out plan.json
    loopscale next runs.csv --budget 1e21 --for plan.json
    """
    observations = take_runs(options)
    target = Target.of_file(plan_path, observations.counts, Goal(goal))
    result = fit(observations, **options)
    pool = (
        ladder_candidates(
            result, rungs=rungs, experts=experts, recurrences=recurrences, tokens=tokens, ratio=(min_ratio, max_ratio)
        )
        if candidates is None
        else read_candidates(candidates)
    )
    chosen = next_runs(result, budget, target, candidates=pool, most=most)
    if as_json:
        print_json(chosen.to_dict())
    elif as_csv:
        click.echo(chosen.table().csv(), nl=False)
    else:
        click.echo(chosen.summary(verbose))
