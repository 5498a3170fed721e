"""``loopscale lab``: tasks in which looping and experts visibly work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loopscale.cli.output import console, print_json, print_table
from loopscale.cli.params import EXITS
from loopscale.cli.verbs import Verb, VerbGroup
from loopscale.core.errors import check_extra
from loopscale.core.quantities import format_count, format_power

if TYPE_CHECKING:
    from loopscale.lab import LabRun, Scores
    from loopscale.lab.training import Watch

NAMES = ("s3", "z2", "s5", "hops", "addition", "tree", "reach", "recall", "facts")


class LabGroup(VerbGroup):
    """Makes the command of a task when it is asked for: its defaults are those of a recipe, which imports torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*NAMES, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _task_command(cmd_name) if cmd_name in NAMES else super().get_command(ctx, cmd_name)


@click.group("lab", cls=LabGroup)
def lab_command() -> None:
    """Train a small looped model on a task with exact answers: watch what each pass adds.

    \b
    loopscale lab s3             # three minutes: from chance at R = 1 to right at R = 12
    loopscale lab s3 --shipped   # a model that is already trained, in seconds
    loopscale lab two-axes       # recurrence and experts, on reasoning and on knowledge
    loopscale lab downstream     # both in one model, at matched training FLOPs
    loopscale lab tasks          # every task, with a sample
    loopscale lab gym chain_sum --out sums   # problems of reasoning-gym as rows to train on
    """
    check_extra("train", "loopscale lab")


@lab_command.command("tasks")
@click.option("--json", "as_json", is_flag=True, help="Print the tasks as JSON.")
def tasks_command(as_json: bool) -> None:
    """List the tasks, each with a problem and its answers.

    A training file uses one with ``[data] task = "s3"`` and ``difficulty = 12``.
    """
    from loopscale.train.data.labels import fixed_problems
    from loopscale.train.data.puzzles import TASKS

    tasks = [TASKS[name](TASKS[name].usual) for name in NAMES]
    if as_json:
        fields = ("name", "kind", "about", "counts", "difficulty", "length", "vocabulary", "chance")
        print_json([{field: getattr(task, field) for field in fields} for task in tasks])
        return
    for task in tasks:
        ids_BT, _ = fixed_problems(task, 1, "validation")
        click.echo(
            f"{task.name}: {task.about} Difficulty: {task.difficulty:,} {task.counts}; chance {task.chance:.3f}."
        )
        click.echo("".join(f"    {line}\n" for line in task.show(ids_BT[0]).splitlines()))


@lab_command.command("score")
@click.argument("model", type=click.Path())
@click.option("--task", help="The task.  [default: that of the run that trained the model]")
@click.option("--difficulty", type=click.IntRange(min=1), help="Size of a problem.  [default: as in training]")
@click.option("--most", type=click.IntRange(min=1), default=24, show_default=True, help="The most passes.")
@click.option("--problems", type=click.IntRange(min=1), default=1024, show_default=True, help="New problems.")
@click.option("--longer", is_flag=True, help="Longer problems than in training.")
@click.option("--exit", "criterion", type=EXITS, help="Also let each position stop its loop, by this criterion.")
@click.option("--threshold", type=click.FloatRange(0), default=0.001, show_default=True, help="Stop below this change.")
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
def score_command(
    model: str,
    task: str | None,
    difficulty: int | None,
    most: int,
    problems: int,
    longer: bool,
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
    scores = score(loaded, chosen, most, count=problems, split="longer" if longer else "validation")
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


@lab_command.command("test-time")
@click.argument("model", type=click.Path(), required=False)
@click.option("--task", help="The task.  [default: that of the run that trained the model]")
@click.option("--difficulty", type=click.IntRange(min=1), help="Size of a problem.  [default: as in training]")
@click.option("--problems", type=click.IntRange(min=1), default=512, show_default=True, help="New problems.")
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
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
    console().print(f"trained at R around {result.trained}; chance {first.task.chance:.2f}", highlight=False)
    print_table("Last answer right by problem size and test-time R", ("size", *map(str, passes)), rows)
    last = len(first.task.asked) - 1
    positions = sorted({0, last // 3, 2 * last // 3, last})
    rows = [
        (f"{threshold:g}", f"{one.solved:.2f}", *(f"{one.passes_A[at]:.1f}" for at in positions))
        for threshold, one in result.exits.items()
    ]
    columns = ("stop below", "right", *(f"passes at {at + 1}" for at in positions))
    print_table(f"Positions stop when their answer settles, after at most {first.most} passes", columns, rows)


@lab_command.command("gym")
@click.argument("name")
@click.option("--out", type=click.Path(), required=True, help="Folder of the rows.")
@click.option("--count", type=click.IntRange(min=1), default=10_000, show_default=True, help="Problems.")
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
    """Return a setting's name and value; what is no JSON is text."""
    import json

    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is no setting; write it like max_terms=3")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


@lab_command.command("gym-check")
@click.argument("rows", type=click.Path())
@click.argument("model", type=click.Path())
@click.option("--recurrence", type=click.IntRange(min=1), help="Passes.  [default: the model's own]")
@click.option("--problems", type=click.IntRange(min=1), default=100, show_default=True, help="New problems.")
@click.option("--json", "as_json", is_flag=True, help="Print the score as JSON.")
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


def _task_command(name: str) -> click.Command:
    """Return the command that trains one task."""
    from loopscale.lab.recipes import Recipe

    usual = Recipe()

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
    @click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
    def command(shipped: bool, out: str | None, as_json: bool, **options: Any) -> None:
        if shipped:
            _shipped(name, as_json)
            return
        from loopscale.lab import train_task

        recipe = Recipe(task=name, **options)
        folder = Path(out) if out is not None else Path("runs") / "lab" / _folder_name(recipe)
        with _watching(not as_json) as watch:
            run = train_task(recipe, folder, watch=watch)
        _save_figure(run)
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

    from loopscale.core.progress import occasional_lines, progress_console
    from loopscale.lab.charts import by_recurrence

    line, out = occasional_lines(shown), progress_console()
    with Live(Text("training …"), console=out, transient=True) if shown and out.is_terminal else _nothing() as live:

        def watch(step: int, steps: int, scores: Scores) -> None:
            accuracy = ", ".join(f"R = {R}: {scores.at(R):.2f}" for R in (1, 4, 8, 12) if scores.most >= R)
            line(f"step {step:,} of {steps:,}: {accuracy}")
            if live is not None:
                title = f"step {step:,} of {steps:,}, {scores.count} new problems, chance {scores.task.chance:.2f}"
                live.update(Text("\n".join([title, *by_recurrence(scores)])))

        yield watch


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


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
    console().print(f"[bold]{measured(scores)}[/] (chance {scores.task.chance:.2f})", highlight=False)
    click.echo("\n".join(by_recurrence(scores)))
    if scores.right_RA.shape[1] > 1:
        click.echo("\n".join(by_position(scores, sorted({1, min(reported, most)}))))
    click.echo(f"{scores.status(min(reported, most))} at R = {min(reported, most)}, from {scores.count:,} new problems")


def _shipped(name: str, as_json: bool) -> None:
    from loopscale.core.errors import InputError
    from loopscale.lab import show_shipped

    if name != "s3":
        raise InputError(f"no trained model of {name!r} comes with loopscale; s3 has one")
    scores = show_shipped()
    if as_json:
        print_json(scores.to_dict())
    else:
        print_scores(scores, 12)


def _save_figure(run: LabRun) -> None:
    from loopscale.figures.lab import draw_scores
    from loopscale.figures.style import save

    save(draw_scores([run.scores], [f"seed {run.recipe.seed}"], run.recipe.recurrence), run.folder / "accuracy.svg")


def _experiment(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Register the command of an experiment with the options that all of them have."""

    def register(function: Callable[..., None]) -> click.Command:
        for option in (
            click.option("--json", "as_json", is_flag=True, help="Print means and differences as JSON."),
            click.option(
                "--out", type=click.Path(), default=f"runs/lab/{name}", show_default=True, help="Folder of the results."
            ),
            click.option("--shipped", is_flag=True, help="Show the runs that come with loopscale; train nothing."),
            click.option(
                "--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Seeds of each cell."
            ),
        ):
            function = option(function)
        return lab_command.command(name)(function)

    return register


@_experiment("two-axes")
@click.option("--equal-flops", is_flag=True, help="Also train the models without a loop for as many FLOPs.")
def two_axes_command(seeds: int, equal_flops: bool, shipped: bool, out: str, as_json: bool) -> None:
    """Compare recurrence and experts on reasoning and on knowledge, with separate layers as a control.

    One seed takes about 90 seconds of an idle core. Rerun the command to resume, or with more seeds to add some.

    \b
    loopscale lab two-axes --shipped
    loopscale lab two-axes --seeds 5 --equal-flops
    """
    from loopscale.figures.lab import draw_two_axes
    from loopscale.lab import two_axes

    cells = (*two_axes.CELLS, *(two_axes.EQUAL_FLOPS if equal_flops else ()))
    rows = two_axes.shipped_rows() if shipped else two_axes.run(Path(out), range(seeds), cells, tell=_tell)
    written = None if shipped else Path(out) / two_axes.RESULTS
    _show(two_axes.summary(rows), _print_two_axes, draw_two_axes, written, as_json)


@_experiment("downstream")
@click.option("--law", is_flag=True, help="Show the law loss(N, D, R, E) of each part instead.")
def downstream_command(seeds: int, shipped: bool, out: str, law: bool, as_json: bool) -> None:
    """Train one model on reasoning, knowledge and text, at two sizes, E, R and matched training FLOPs.

    One seed has 26 runs and takes about six minutes of an idle core. Rerun the command to resume, or with more seeds.
    The protocol is docs/lab-protocol.md.

    \b
    loopscale lab downstream --shipped
    loopscale lab downstream --seeds 5
    """
    from loopscale.figures.lab import draw_downstream
    from loopscale.lab import downstream
    from loopscale.lab.law import asked_of, held_out_errors, task_law
    from loopscale.lab.questions import summary

    rows = downstream.shipped_rows() if shipped else downstream.run(Path(out), range(seeds), tell=_tell)
    result = summary(rows)
    if law:
        result["law"] = {
            part: asked_of(task_law(rows, part)) | {"held_out": held_out_errors(rows, part)}
            for part in ("words", "facts")
        }
    written = None if shipped else Path(out) / downstream.RESULTS
    _show(result, _print_law if law else _print_downstream, draw_downstream, written, as_json)


def _tell(about: str, seed: int, row: dict[str, Any] | None) -> None:
    if row is None:
        click.echo(f"training: {about}, seed {seed}", err=True)
    elif row.get("status", "done") != "done":
        click.echo(f"    failed: {row['status']}", err=True)
    else:
        scores = ", ".join(f"{name} {row[name]:.3f}" for name in ("accuracy", "words", "facts") if name in row)
        click.echo(f"    {scores} in {row['seconds']:.0f} s", err=True)


def _show(
    result: dict[str, Any],
    print_result: Callable[[dict[str, Any]], None],
    draw: Callable[[dict[str, Any]], Any],
    written: Path | None,
    as_json: bool,
) -> None:
    """Print what an experiment shows; the figure is saved beside the runs that were ``written``."""
    from loopscale.figures.style import save

    if written is not None:
        save(draw(result), written.with_suffix(".svg"))
    if as_json:
        print_json(result)
        return
    print_result(result)
    if written is not None:
        click.echo(f"every run is in {written}, the figure in {written.with_suffix('.svg')}")


def _print_two_axes(result: dict[str, Any]) -> None:
    cells = {(cell["task"], cell["model"]): cell for cell in result["cells"]}
    subjects = list(dict.fromkeys(task for task, _ in cells))
    least = min(cell["training_flops"] for cell in result["cells"] if cell["task"] == subjects[0])
    rows = []
    for model in dict.fromkeys(model for _, model in cells):
        of_model = [cells.get((subject, model)) for subject in subjects]
        flops = next(cell["training_flops"] for cell in of_model if cell is not None)
        rows.append((model, f"{flops / least:.1f}x", *(_accuracy(cell) for cell in of_model)))
    chances = " and ".join(f"{cells[subject, rows[0][0]]['chance']:.3f}" for subject in subjects)
    seeds = sorted({cell["seeds"] for cell in result["cells"]})
    title = f"Accuracy over {'-'.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seeds (chance {chances})"
    print_table(title, ("model", "FLOPs", *subjects), rows, left=("model",))
    changes = {(change["task"], change["about"]): change for change in result["differences"]}
    rows = [
        (about, *(_difference(changes.get((subject, about))) for subject in subjects))
        for about in dict.fromkeys(about for _, about in changes)
    ]
    title = "Differences, seed by seed (* 95% interval without 0)"
    print_table(title, ("of", *subjects), rows, left=("of",))


def _print_downstream(result: dict[str, Any]) -> None:
    if not result["differences"]:
        click.echo(f"{result['runs']} of {result['planned']} runs, too few to compare two cells")
        return
    widths = sorted({answer["width"] for answer in result["differences"]})
    answers = {(answer["measure"], answer["about"], answer["width"]): answer for answer in result["differences"]}
    rows = []
    for measure, about in dict.fromkeys((answer["measure"], answer["about"]) for answer in result["differences"]):
        by_width = [answers.get((measure, about, width)) for width in widths]
        rows.append((measure, about, *(_difference(answer) for answer in by_width)))
    title = "Differences, seed by seed (0 is chance, 1 all right; * 95% interval without 0)"
    columns = ("of", "change", *(f"width {width}" for width in widths))
    print_table(title, columns, rows, left=("of", "change"))
    click.echo(f"{result['runs']} of {result['planned']} runs, {result['failed']} failed")
    for measure, learnt in result["learnt"].items():
        if not learnt:
            click.echo(f"no cell has learnt {measure} (0.8 of the way from chance to all right)")
    for answer in result["replaced"]:
        click.echo(f"R = {answer['recurrence']} at width {widths[0]} reasons {_replaced(answer, widths[-1])}")


def _replaced(answer: dict[str, Any], largest: int) -> str:
    """Say which model of one pass has the reasoning of a loop."""
    if answer["factor"] is None:
        sides = {"above": f"better than all up to width {largest} at one pass", "below": "worse than at one pass"}
        return sides.get(answer["outside"], "unknown: too few runs")
    limits = answer["interval"]
    span = "interval open" if limits is None else f"{limits[0]:.1f}x to {limits[1]:.1f}x"
    return f"as {answer['factor']:.1f}x its weights at one pass ({span})"


def _print_law(result: dict[str, Any]) -> None:
    """Print what the laws on tasks answer; a degenerate fit leaves its coefficients undecided."""
    rows, law = [], result["law"]
    for part, asked in law.items():
        errors = asked["held_out"]
        best = min(errors, key=errors.__getitem__)
        spans = [
            f"{asked[name]['value']:.2g} ({asked[name]['interval'][0]:.2g} to {asked[name]['interval'][1]:.2g})"
            if name in asked
            else "undecided"
            for name in ("kappa1", "theta")
        ]
        error = (f"{asked['rmse']:.2f}", f"{asked['deviation']:.2f}", f"{errors[best]:.2f} ({best})")
        rows.append((part, *error, *spans))
    columns = ("part", "RMSE", "deviation", "largest R held out", "kappa1", "theta")
    print_table("Law loss(N, D, R, E) on each part, nats per answer", columns, rows, left=("part",))
    for part, asked in law.items():
        if "undecided" in asked:
            click.echo(f"{part}: {asked['undecided'].split(':')[0]}")


def _accuracy(cell: dict[str, Any] | None) -> str:
    """Return a mean with half its 95% interval, or that it is at chance."""
    if cell is None:
        return ""
    return f"{cell['accuracy']:.2f}{_half(cell)}{' at chance' if cell['at_chance'] else ''}"


def _difference(answer: dict[str, Any] | None) -> str:
    """Return a difference with half its 95% interval; a star marks an interval that excludes zero."""
    if answer is None:
        return ""
    return f"{answer['value']:+.2f}{_half(answer)}{'*' if answer['clear'] else ' '}"


def _half(mean: dict[str, Any]) -> str:
    limits = mean["interval"]
    return "" if limits is None else f" ± {(limits[1] - limits[0]) / 2:.2f}"
