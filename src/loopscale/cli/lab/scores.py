"""``loopscale lab tasks|score|test-time``: the tasks, and models scored on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from loopscale.cli.lab.training import print_scores
from loopscale.cli.output import print_json, print_table, say
from loopscale.cli.params import EXITS, json_option, options
from loopscale.cli.verbs import verb

NAMES = ("s3", "z2", "s5", "hops", "addition", "tree", "reach", "recall", "facts")
"""The tasks that have a command."""


def _problem_options(problems: int) -> Callable[[Any], Any]:
    """Add the options that choose the problems a model is scored on, ``problems`` of them by default."""
    positive = click.IntRange(min=1)
    return options(
        click.option("--task", help="The task.  [default: that of the run that trained the model]"),
        click.option("--difficulty", type=positive, help="Size of a problem.  [default: as in training]"),
        click.option("--problems", type=positive, default=problems, show_default=True, help="How many new problems."),
    )


@verb("tasks")
@click.argument("name", type=click.Choice(NAMES), required=False)
@json_option
def tasks_command(name: str | None, as_json: bool) -> None:
    """List the tasks, or show a problem of one and its answers.

    A training file uses one with ``[data] task = "s3"`` and ``difficulty = 12``.

    \b
    loopscale lab tasks
    loopscale lab tasks hops
    """
    from loopscale.train.data.labels import fixed_problems
    from loopscale.train.data.puzzles import TASKS

    tasks = [TASKS[task](TASKS[task].usual) for task in ((name,) if name else NAMES)]
    if as_json:
        fields = ("name", "kind", "about", "counts", "difficulty", "length", "vocabulary", "chance")
        print_json([{field: getattr(task, field) for field in fields} for task in tasks])
    elif name is None:
        rows = [(task.name, f"{task.chance:.3f}", f"{task.difficulty:,} {task.counts}", task.about) for task in tasks]
        columns = ("task", "chance", "difficulty", "about")
        print_table("", columns, rows, left=("task", "difficulty", "about"))
        say("`loopscale lab tasks NAME` shows a problem and its answers.")
    else:
        (task,) = tasks
        ids_BT, _ = fixed_problems(task, 1, "validation")
        say(f"{task.name}: {task.about} Difficulty: {task.difficulty:,} {task.counts}; chance {task.chance:.3f}.")
        click.echo("".join(f"    {line}\n" for line in task.show(ids_BT[0]).splitlines()), nl=False)


@verb("score", short_help="Score a model on a task at each number of passes.")
@click.argument("model", type=click.Path())
@_problem_options(1024)
@click.option("--most", type=click.IntRange(min=1), default=24, show_default=True, help="Most passes to score.")
@click.option("--exit", "criterion", type=EXITS, help="Also let each position stop its loop, by this criterion.")
@click.option("--threshold", type=click.FloatRange(0), default=0.001, show_default=True, help="Stop below this change.")
@json_option
def score_command(
    model: str,
    task: str | None,
    difficulty: int | None,
    most: int,
    problems: int,
    criterion: str | None,
    threshold: float,
    as_json: bool,
) -> None:
    """Score MODEL, the folder of a run or of a model, on a task at R = 1, 2, … passes.

    \b
    loopscale train s3.toml --out runs/s3
    loopscale lab score runs/s3
    loopscale lab score runs/s3 --difficulty 18 --exit kl
    """
    from loopscale.lab.recipes import reported_recurrence
    from loopscale.lab.scores import score, score_exit
    from loopscale.lab.training import load, task_of
    from loopscale.model import Exit

    chosen = task_of(model, task, difficulty)
    loaded = load(model)
    scores = score(loaded, chosen, most, count=problems)
    left = None
    if criterion is not None:
        left = score_exit(loaded, scores.task, Exit(criterion, threshold), most, count=problems)
    if as_json:
        print_json(scores.to_dict() | ({} if left is None else {"exit": left.to_dict()}))
        return
    print_scores(scores, reported_recurrence(loaded.config.recurrence, bool(loaded.config.random_recurrence)))
    if left is not None:
        passes = " ".join(f"{used:.1f}" for used in left.passes_A)
        click.echo(
            f"with exit by {criterion} below {threshold:g}: {left.solved:.2f} right with {left.passes_A.mean():.1f} "
            f"passes on average; by position {passes}"
        )


@verb("test-time", short_help="Show what more passes than in training do.")
@click.argument("model", type=click.Path(), required=False)
@_problem_options(512)
@json_option
def test_time_command(
    model: str | None, task: str | None, difficulty: int | None, problems: int, as_json: bool
) -> None:
    """Show what more passes than in training do: longer problems, and positions that stop by themselves.

    Without MODEL, the one that comes with loopscale.

    \b
    loopscale lab test-time
    loopscale lab test-time runs/lab/s3-seed-1
    """
    from loopscale.lab.shipped import shipped_model, shipped_task
    from loopscale.lab.test_time import measure
    from loopscale.lab.training import load, task_of

    loaded = shipped_model() if model is None else load(model)
    result = measure(loaded, shipped_task() if model is None else task_of(model, task, difficulty), count=problems)
    if as_json:
        print_json(result.to_dict())
        return
    first = result.scores[0]
    passes = range(2 * round(result.trained / 4), first.most + 1, 2)
    rows = [(str(one.task.difficulty), *(f"{one.at(R):.2f}" for R in passes)) for one in result.scores]
    say(f"trained at R around {result.trained}; chance {first.task.chance:.2f}")
    print_table("Last answer right by problem size and test-time R", ("size", *map(str, passes)), rows)
    last = len(first.task.asked) - 1
    positions = sorted({0, last // 3, 2 * last // 3, last})
    rows = [
        (f"{threshold:g}", f"{one.solved:.2f}", *(f"{one.passes_A[at]:.1f}" for at in positions))
        for threshold, one in result.exits.items()
    ]
    columns = ("stop below", "right", *(f"passes at {at + 1}" for at in positions))
    print_table(f"Positions stop when their answer settles, after at most {first.most} passes", columns, rows)
