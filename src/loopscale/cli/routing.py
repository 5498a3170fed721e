"""``loopscale routing``."""

from __future__ import annotations

import click

from loopscale.cli.options import WHOLE, output_options
from loopscale.cli.show import console, print_json, print_table
from loopscale.tables import Table
from loopscale.train.finished import model_of


@click.command("routing")
@click.argument("checkpoint", type=click.Path())
@click.option("--data", required=True, type=click.Path(), help="A text file with one prompt on each line.")
@click.option("--recurrence", type=WHOLE, help="R to go up to.  [default: the model's own]")
@click.option("--tokenizer", help="A tokenizer's folder.  [default: the checkpoint]")
@click.option("--batch", type=WHOLE, default=8, show_default=True, help="Prompts in one forward.")
@click.option("--context", type=WHOLE, help="Tokens of a prompt to use.  [default: the model's maximum]")
@click.option("--plot", type=click.Path(), help="Draw Psi over R into this PNG, SVG or PDF file.")
@output_options
def command(
    checkpoint: str,
    data: str,
    recurrence: int | None,
    tokenizer: str | None,
    batch: int,
    context: int | None,
    plot: str | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Measure expert-path diversity Psi: how many experts a token meets over R passes, for each active one.

    \b
    loopscale routing runs/tiny --data prompts.txt
    loopscale routing runs/tiny --data prompts.txt --recurrence 8 --plot psi.png
    """
    from loopscale.model import loading
    from loopscale.model.psi import path_diversity

    prompts = loading.read_prompts(data)
    model, words = loading.load(model_of(checkpoint), tokenizer)
    longest = min(context or model.config.max_position_embeddings, model.config.max_position_embeddings)
    found = path_diversity(model, loading.batches(words, prompts, batch, longest), recurrence)
    table = found.table()
    if plot is not None:
        _draw(table, plot)
    if as_json:
        print_json({"kind": "routing", "prompts": len(prompts), "rows": list(table.records())})
    elif as_csv:
        click.echo(table.csv(), nl=False)
    else:
        _print(table, len(prompts), found.tokens.count)


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
