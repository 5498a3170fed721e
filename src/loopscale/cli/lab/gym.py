"""``loopscale lab gym|gym-check``: problems of reasoning-gym, to train on and to check answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loopscale.cli.output import print_json
from loopscale.cli.params import json_option
from loopscale.cli.verbs import verb


@verb("gym", short_help="Write problems of reasoning-gym to train on.")
@click.argument("name")
@click.option("--out", type=click.Path(), required=True, help="Folder of the rows.")
@click.option("--count", type=click.IntRange(min=1), default=10_000, show_default=True, help="How many problems.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Selects the problems.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the task, like max_terms=3.")
def gym_command(name: str, out: str, count: int, seed: int, settings: tuple[str, ...]) -> None:
    """Write problems of the reasoning-gym task NAME as rows of prompt and completion, to train on.

    \b
    loopscale lab gym chain_sum --set max_terms=2 --set max_digits=1 --out sums
    loopscale train sums.toml   # with [data] files = "sums/rows.jsonl", format = "completion"
    loopscale lab gym-check sums runs/sums
    """
    from loopscale.lab.gym import ROWS, GymTask

    written = GymTask(name, dict(_setting(text) for text in settings), seed).write(Path(out), count)
    click.echo(f"{written:,} different problems: {Path(out) / ROWS}")


def _setting(text: str) -> tuple[str, Any]:
    """Return a setting's name and value; a value that is not JSON is text."""
    import json

    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE; write it like max_terms=3")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


@verb("gym-check", short_help="Check a model's answers to new problems of it.")
@click.argument("rows", type=click.Path())
@click.argument("model", type=click.Path())
@click.option("--recurrence", type=click.IntRange(min=1), help="Passes through the loop.  [default: the model's own]")
@click.option("--problems", type=click.IntRange(min=1), default=100, show_default=True, help="How many new problems.")
@json_option
def gym_check_command(rows: str, model: str, recurrence: int | None, problems: int, as_json: bool) -> None:
    """Let MODEL answer new problems of the task in the folder ROWS, and check its answers.

    \b
    loopscale lab gym-check sums runs/sums --recurrence 4
    """
    from loopscale.lab.gym import check

    result = check(Path(rows), model, recurrence, problems)
    if as_json:
        print_json(result)
        return
    low, high = result["interval"]
    click.echo(
        f"{result['task']} at R = {result['recurrence']}: {result['accuracy']:.2f} right ({low:.2f} to {high:.2f}) of "
        f"{result['problems']} new problems, score {result['score']:.2f} by the task's own checker"
    )
