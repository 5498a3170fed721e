"""``loopscale lab two-axes|downstream``: experiments of many runs, and what they show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from loopscale.cli.output import print_json, print_table
from loopscale.cli.params import json_option, options
from loopscale.cli.verbs import verb


def _run_options(name: str) -> Callable[[Any], Any]:
    """Add the options that every experiment has; its results go to a folder of its ``name``."""
    folder = f"runs/lab/{name}"
    return options(
        click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Seeds of each cell."),
        click.option("--shipped", is_flag=True, help="Show the runs that come with loopscale; train nothing."),
        click.option("--out", type=click.Path(), default=folder, show_default=True, help="Folder of the results."),
        json_option,
    )


@verb("two-axes", short_help="Compare recurrence and experts by task.")
@_run_options("two-axes")
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


@verb("downstream", short_help="Train reasoning, knowledge and text at matched FLOPs.")
@_run_options("downstream")
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
