"""``loopscale next``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.architecture import RUNG_EXPERTS, RUNGS
from loopscale.cli.data import data_options, form_options, read_runs, take_procedure
from loopscale.cli.options import COUNT, COUNTS, EXPERTS, INTEGERS, RUNG_LIST, WHOLE, output_options
from loopscale.cli.show import console, print_json
from loopscale.errors import InputError
from loopscale.files import read_json
from loopscale.fit import fit, resample
from loopscale.fit.candidates import RECURRENCES, ladder_candidates
from loopscale.fit.design import MOST_RUNS, next_runs
from loopscale.fit.forms import default_form
from loopscale.fit.targets import Goal, Target
from loopscale.laws import MAPPINGS


@click.command("next")
@data_options
@click.option("--budget", type=COUNT, required=True, help="FLOPs for new runs, like 1e20.")
@click.option(
    "--for",
    "plan_path",
    type=click.Path(),
    required=True,
    help="The plan to make sure of: a file of `loopscale plan --out`.",
)
@click.option(
    "--goal",
    type=click.Choice([each.value for each in Goal]),
    default=Goal.CHOICE.value,
    show_default=True,
    help="choice: the differences to its rivals. predictions: its losses.",
)
@click.option("--rung", "rungs", type=RUNG_LIST, help=f"Rungs to choose runs from.  [default: {','.join(RUNGS)}]")
@click.option("--experts", type=EXPERTS, help="Expert counts to choose from.")
@click.option("--recurrence", "recurrences", type=INTEGERS, help="Recurrences to choose from.")
@click.option(
    "--tokens", type=COUNTS, help="Token counts to choose from.  [default: half the least to twice the most seen]"
)
@click.option("--most", type=WHOLE, default=MOST_RUNS, show_default=True, help="The most runs to choose.")
@click.option(
    "--mapping", type=click.Choice(list(MAPPINGS)), help="Recurrence mapping.  [default: what the data call for]"
)
@click.option(
    "--resamples",
    type=click.IntRange(0, 1000),
    default=16,
    show_default=True,
    help="Refits to average over; 0 for none.",
)
@form_options
@output_options
def command(
    budget: float,
    plan_path: str,
    goal: str,
    rungs: tuple[str, ...] | None,
    experts: tuple[float, ...] | None,
    recurrences: tuple[int, ...] | None,
    tokens: tuple[float, ...] | None,
    most: int,
    mapping: str | None,
    resamples: int,
    outer: str | None,
    as_json: bool,
    as_csv: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Choose the runs to train next: those that make a plan surest per FLOP.

    \b
    loopscale plan --flops 5e21 --memory 3GB --bits int4 --law law.json --out plan.json
    loopscale next runs.csv --budget 1e21 --for plan.json
    """
    plan = read_json(plan_path)
    if not isinstance(plan, dict) or plan.get("kind") != "plan":
        raise InputError(f"{plan_path}: this is not a plan; make one with `loopscale plan … --out {plan_path}`")
    settings = take_procedure(given)
    observations = read_runs(**given)
    try:
        target = Target.of_plan(plan, observations.counts, Goal(goal))
    except InputError as error:
        raise InputError(f"{plan_path}: {error}") from None
    form, recurrence = default_form(observations, outer, mapping)
    found = fit(observations, outer=form, mapping=recurrence, **settings)
    if resamples:
        found = resample(found, count=resamples, seed=settings["seed"])
    pool = ladder_candidates(
        observations,
        rungs=rungs or tuple(RUNGS),
        experts=experts or RUNG_EXPERTS,
        recurrences=recurrences or RECURRENCES,
        tokens=tokens,
    )
    design = next_runs(found, budget, target, candidates=pool, most=most)
    if as_json:
        rows = list(design.table().records())
        print_json({"kind": "design", "goal": goal, "before": design.before, "after": design.after, "runs": rows})
    elif as_csv:
        click.echo(design.table().csv(), nl=False)
    else:
        console().print(str(design), highlight=False)
