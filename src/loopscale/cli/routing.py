"""``loopscale routing``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.checkpoint import model_folder
from loopscale.cli.output import console, print_json, print_table
from loopscale.cli.params import WHOLE, output_options
from loopscale.cli.verbs import verb
from loopscale.core.tables import Table


@verb("routing")
@click.argument("checkpoint", type=click.Path())
@click.option("--data", required=True, type=click.Path(), help="A text file with one prompt on each line.")
@click.option("--recurrence", type=WHOLE, help="The largest R.  [default: the model's own; twice that by pass]")
@click.option("--tokenizer", help="A tokenizer's folder.  [default: the checkpoint]")
@click.option("--batch", type=WHOLE, default=8, show_default=True, help="Prompts in one forward.")
@click.option("--context", type=WHOLE, help="Tokens of a prompt to use.  [default: the model's maximum]")
@click.option("--by-pass", is_flag=True, help="Show loss, experts and states of every pass instead of Psi.")
@click.option("--plot", type=click.Path(), help="Draw the result over R into this PNG, SVG or PDF file.")
@output_options
def routing_command(
    checkpoint: str,
    data: str,
    recurrence: int | None,
    tokenizer: str | None,
    batch: int,
    context: int | None,
    by_pass: bool,
    plot: str | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Measure expert-path diversity Psi: how many experts a token visits over R passes, for each active one.

    With --by-pass: for each R the loss, the distinct experts of a token so far, the overlap (Jaccard) of its experts
    with those of the previous and the first pass, the variance of the state over tokens, its relative change in this
    pass, and its relative distance to the fixed point.

    \b
    loopscale routing runs/tiny --data prompts.txt
    loopscale routing runs/tiny --data prompts.txt --recurrence 8 --plot psi.png
    loopscale routing runs/tiny --data prompts.txt --by-pass --plot passes.png
    """
    from loopscale.model import loading
    from loopscale.model.prompts import batches, read_prompts
    from loopscale.model.psi import pass_diagnostics, path_diversity

    prompts = read_prompts(data)
    model, loaded_tokenizer = loading.load(model_folder(checkpoint), tokenizer)
    longest = min(context or model.config.max_position_embeddings, model.config.max_position_embeddings)
    read = batches(loaded_tokenizer, prompts, batch, longest)
    if by_pass:
        _by_pass(pass_diagnostics(model, read, recurrence), len(prompts), plot, as_json, as_csv)
        return
    diversity = path_diversity(model, read, recurrence)
    table = diversity.table()
    if plot is not None:
        _draw(table, plot)
    if as_json:
        print_json({"kind": "routing", "prompts": len(prompts), "rows": list(table.records())})
    elif as_csv:
        click.echo(table.csv(), nl=False)
    else:
        _print(table, len(prompts), diversity.tokens.count)


BY_PASS = {
    "loss": "loss",
    "distinct": "experts",
    "overlap_previous": "overlap",
    "overlap_first": "with first",
    "variance": "variance",
    "change": "change",
    "distance": "distance",
}
"""Headings of the columns by pass."""


def _by_pass(measured: Any, prompts: int, plot: str | None, as_json: bool, as_csv: bool) -> None:
    table = measured.table()
    if plot is not None:
        from loopscale.figures.outcomes import draw_passes
        from loopscale.figures.style import new_figure, save

        figure, panels = new_figure(columns=3)
        draw_passes(table, panels)
        save(figure, plot)
    if as_json:
        overlap_RR = measured.overlap_RR
        rows = [{name: None if value != value else value for name, value in row.items()} for row in table.records()]
        matrix = None if overlap_RR is None else overlap_RR.tolist()
        print_json({"kind": "passes", "prompts": prompts, "tokens": measured.tokens, "rows": rows, "overlap": matrix})
    elif as_csv:
        click.echo(table.csv(), nl=False)
    else:
        names = [name for name in BY_PASS if name in table.columns]
        lines = [
            (str(row["recurrence"]), *("" if row[name] != row[name] else f"{row[name]:.4f}" for name in names))
            for row in table.records()
        ]
        title = f"By pass, over {prompts} prompts ({measured.tokens:,} tokens)"
        print_table(title, ("R", *(BY_PASS[name] for name in names)), lines)


def _print(table: Table, prompts: int, counted: int) -> None:
    """Print the paper's table shape: a row for E, a column for each R, mean ± spread over prompts."""
    rows = list(table.records())
    cells = [f"{row['psi']:.4f} ± {row['std_prompts']:.4f}" for row in rows]
    title = f"Psi over {prompts} prompts, mean ± std over prompts"
    for start in range(0, len(rows), 6):  # six fit a screen
        names = [f"R={row['recurrence']}" for row in rows[start : start + 6]]
        print_table(title if not start else "", ["E", *names], [[f"{rows[0]['experts']:g}", *cells[start : start + 6]]])
    last = rows[-1]
    console().print(
        f"at R = {last['recurrence']}: std {last['std_tokens']:.4f} over {counted:,} (token, layer) pairs, "
        f"{last['std_layers']:.4f} over layers",
        highlight=False,
    )


def _draw(table: Table, path: str) -> None:
    from loopscale.figures.outcomes import draw_psi
    from loopscale.figures.style import new_figure, save

    figure, (axes,) = new_figure()
    draw_psi(Table({**table.columns, "spread": table.columns["std_prompts"]}), axes)
    save(figure, path)
