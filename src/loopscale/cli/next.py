"""``loopscale next``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.choosing import Goal, Target, ladder_candidates, next_runs, read_candidates
from loopscale.choosing.choose import MOST_RUNS
from loopscale.cli.form import form_options, mapping_option, resamples_option
from loopscale.cli.output import print_result
from loopscale.cli.params import COUNT, COUNTS, EXPERTS, INTEGERS, WHOLE, output_options, verbose_option
from loopscale.cli.reading import data_options, take_runs
from loopscale.cli.subjects import RUNG_LIST
from loopscale.cli.verbs import verb
from loopscale.fitting import fit


@verb("next")
@data_options
@click.option("--budget", type=COUNT, required=True, help="FLOPs for new runs, like 1e20.")
@click.option("--for", "plan_path", type=click.Path(), help="Target: a plan, a file of `loopscale plan --out`.")
@click.option("--params", type=COUNT, help="Target: a run of so many parameters, with --tokens; no plan needed.")
@click.option("--tokens", type=COUNT, help="Target: tokens of that run.")
@click.option("--flops", type=COUNT, help="Target: the best dense model for this training compute.")
@click.option(
    "--goal",
    type=click.Choice([goal.value for goal in Goal]),
    default=Goal.CHOICE.value,
    show_default=True,
    help="With --for. choice: the differences to its rivals. predictions: its losses.",
)
@click.option("--candidates", type=click.Path(), help="A table of runs to choose from, with N, D and cost.")
@click.option("--rung", "rungs", type=RUNG_LIST, help="Rungs to choose from.  [default: your own sizes and larger]")
@click.option("--experts", type=EXPERTS, help="Expert counts to choose from, for rungs.")
@click.option("--recurrence", "recurrences", type=INTEGERS, help="Recurrences to choose from, for rungs.")
@click.option("--run-tokens", type=COUNTS, help="Token counts to choose from, for rungs.")
@click.option("--min-ratio", type=COUNT, help="Least tokens per parameter, for rungs.  [default: that of the data]")
@click.option("--max-ratio", type=COUNT, help="Most tokens per parameter, for rungs.  [default: that of the data]")
@click.option("--most", type=WHOLE, default=MOST_RUNS, show_default=True, help="The most runs to choose.")
@mapping_option
@resamples_option(16, least=0, most=1000, text="Refits to average over; 0 for none.")
@form_options
@output_options
@verbose_option
def next_command(
    budget: float,
    plan_path: str | None,
    params: float | None,
    tokens: float | None,
    flops: float | None,
    goal: str,
    candidates: str | None,
    rungs: tuple[str, ...] | None,
    experts: tuple[float, ...] | None,
    recurrences: tuple[int, ...] | None,
    run_tokens: tuple[float, ...] | None,
    min_ratio: float | None,
    max_ratio: float | None,
    most: int,
    as_json: bool,
    as_csv: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Choose the runs to train next: those that reduce the error at a target most.

    The target is one larger run, a training compute, or a plan. The expected error includes that the law's form may be
    wrong beyond the data. Candidates are your sizes and larger ones, unless the data are on the paper's ladder.

    \b
    loopscale next runs.csv --budget 3e19 --params 7B --tokens 140B
    loopscale next runs.csv --budget 3e19 --flops 1e22
    loopscale plan --flops 5e21 --memory 3GB --bits int4 --law law.json --out plan.json
    loopscale next runs.csv --budget 1e21 --for plan.json
    """
    _check_target(plan_path, params, tokens, flops)
    observations = take_runs(options)
    planned = None if plan_path is None else Target.of_file(plan_path, observations.counts, Goal(goal))
    result = fit(observations, **options)
    if flops is not None:
        target = Target.of_flops(result.law, flops)
    elif params is not None and tokens is not None:
        target = Target.of_run(result.law, params, tokens)
    else:
        assert planned is not None
        target = planned
    pool = None
    if candidates is not None:
        pool = read_candidates(candidates)
    elif any(value is not None for value in (rungs, experts, recurrences, run_tokens, min_ratio, max_ratio)):
        pool = ladder_candidates(
            result,
            rungs=rungs,
            experts=experts,
            recurrences=recurrences,
            tokens=run_tokens,
            ratio=(min_ratio, max_ratio),
        )
    chosen = next_runs(result, budget, target, candidates=pool, most=most)
    print_result(chosen, as_json, as_csv, verbose)


def _check_target(plan_path: str | None, params: float | None, tokens: float | None, flops: float | None) -> None:
    if (params is None) != (tokens is None):
        raise click.UsageError("--params and --tokens go together; give both")
    stated = [name for name, value in (("--for", plan_path), ("--params", params), ("--flops", flops)) if value]
    if not stated:
        raise click.UsageError("give a target: --params 7B --tokens 140B, --flops 1e22, or --for plan.json")
    if len(stated) > 1:
        raise click.UsageError(f"{' and '.join(stated)} both state the target; give one")
