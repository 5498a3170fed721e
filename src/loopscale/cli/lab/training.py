"""``loopscale lab TASK``: train a task while you watch, and score it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loopscale.cli.output import print_json, say
from loopscale.cli.params import json_option
from loopscale.cli.verbs import Verb
from loopscale.core.quantities import format_count, format_power

if TYPE_CHECKING:
    from loopscale.lab.scores import Scores
    from loopscale.lab.training import LabRun, Watch


def task_command(name: str) -> click.Command:
    """Return the command that trains one task."""
    from loopscale.lab.recipes import LabRecipe

    usual = LabRecipe()

    @click.command(name, cls=Verb, short_help=f"Train a looped model on the task {name}.")
    @click.option("--difficulty", type=click.IntRange(min=1), help="Size of a problem.  [default: the task's usual]")
    @click.option("--recurrence", default=usual.recurrence, show_default=True, help="R: passes in training.")
    @click.option("--experts", default=1, show_default=True, help="E: experts for each active one.")
    @click.option("--layers", default=1, show_default=True, help="With --recurrence 1: separate layers, a control.")
    @click.option("--size", "width", default=usual.width, show_default=True, help="Width of the model.")
    @click.option("--supervise", is_flag=True, help="Train the answer after every pass, not after the last only.")
    @click.option(
        "--random-recurrence/--fixed-recurrence",
        default=True,
        show_default=True,
        help="Draw R at each step around --recurrence.",
    )
    @click.option("--steps", default=usual.steps, show_default=True, help="Training steps of 64 problems.")
    @click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of weights and data.")
    @click.option("--out", type=click.Path(), help="Folder for model, figure and report.  [default: runs/lab/…]")
    @click.option("--shipped", is_flag=True, help="Score the trained model that comes with loopscale; train nothing.")
    @json_option
    def command(shipped: bool, out: str | None, as_json: bool, **options: Any) -> None:
        if shipped:
            _shipped(name, as_json)
            return
        from loopscale.figures.lab import draw_scores
        from loopscale.figures.style import save
        from loopscale.lab.training import train_task

        recipe = LabRecipe(task=name, **options)
        folder = Path(out) if out is not None else Path("runs") / "lab" / _folder_name(recipe)
        with _watching(not as_json) as watch:
            run = train_task(recipe, folder, watch=watch)
        figure = draw_scores([run.scores], [f"seed {recipe.seed}"], recipe.recurrence)
        save(figure, run.folder / "accuracy.svg")
        if as_json:
            print_json(run.to_dict())
        else:
            _print(run)

    command.help = f"""Train a small looped model on the task {name} while you watch, then score it at each test-time R.

    Model, figure and report are saved. Rerun the same command to resume a run that was stopped.
    """
    return command


def _folder_name(recipe: Any) -> str:
    """Return a folder for each different recipe: the task and what differs from the usual recipe."""
    from dataclasses import fields

    changed = [
        f"{field.name}-{getattr(recipe, field.name)}"
        for field in fields(recipe)
        if field.name not in ("task", "seed") and getattr(recipe, field.name) != field.default
    ]
    return "-".join([recipe.task, *changed, f"seed-{recipe.seed}"])


@contextmanager
def _watching(shown: bool) -> Iterator[Watch]:
    """Show the accuracy by pass while a model trains: a live chart on a terminal, a line now and then elsewhere."""
    from rich.live import Live
    from rich.text import Text

    from loopscale.core.progress import occasional_lines, progress_console, time_left
    from loopscale.lab.charts import by_recurrence

    line, out, started = occasional_lines(shown), progress_console(), time.monotonic()
    with Live(Text("training …"), console=out, transient=True) if shown and out.is_terminal else nullcontext() as live:

        def watch(step: int, steps: int, scores: Scores) -> None:
            accuracy = ", ".join(f"R = {R}: {scores.at(R):.2f}" for R in (1, 4, 8, 12) if scores.most >= R)
            now = f"step {step:,} of {steps:,}{time_left(started, step, steps)}"
            line(f"{now}: {accuracy}")
            if live is not None:
                title = f"{now}, {scores.count} new problems, chance {scores.task.chance:.2f}"
                live.update(Text("\n".join([title, *by_recurrence(scores)])))

        yield watch


def _print(run: LabRun) -> None:
    facts, scores = run.facts, run.scores
    print_scores(scores, run.recipe.reported)
    if run.longer is not None:
        best = max(range(1, run.longer.most + 1), key=run.longer.at)
        click.echo(
            f"longer ({run.longer.task.difficulty} {scores.task.counts}): at best {run.longer.at(best):.2f}, "
            f"at R = {best} ({run.longer.status(best)})"
        )
    click.echo(
        f"{format_count(facts['weights'])} weights, {facts['steps']:,} steps, "
        f"{format_power(facts['training_flops'])} FLOPs, {facts['seconds']:.0f} s "
        f"({facts['cpu_seconds']:.0f} s of one core), seed {run.recipe.seed}\n"
        f"model, figure and report: {run.folder}"
    )


def print_scores(scores: Scores, reported: int) -> None:
    from loopscale.lab.charts import by_position, by_recurrence, measured

    most = scores.most
    say(f"{measured(scores)} (chance {scores.task.chance:.2f})", bold=True)
    click.echo("\n".join(by_recurrence(scores)))
    if scores.right_RA.shape[1] > 1:
        click.echo("\n".join(by_position(scores, sorted({1, min(reported, most)}))))
    click.echo(f"{scores.status(min(reported, most))} at R = {min(reported, most)}, from {scores.count:,} new problems")


def _shipped(name: str, as_json: bool) -> None:
    from loopscale.core.errors import InputError
    from loopscale.lab.shipped import show_shipped

    if name != "s3":
        raise InputError(f"no trained model of {name!r} comes with loopscale; s3 has one")
    scores = show_shipped()
    if as_json:
        print_json(scores.to_dict())
    else:
        print_scores(scores, 12)
