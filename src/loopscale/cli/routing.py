"""``loopscale routing``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from loopscale.cli.checkpoint import model_folder, tokenizer_option
from loopscale.cli.output import print_json, print_table, print_wide_table, say
from loopscale.cli.params import WHOLE, output_options
from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError
from loopscale.core.progress import progress_bar
from loopscale.core.quantities import counted
from loopscale.core.tables import Table

SHIPPED = "the 800 prompts of loopscale"


@verb("routing")
@click.argument("paths", metavar="MODEL|SWEEP...", nargs=-1, required=True, type=click.Path())
@click.option("--data", type=click.Path(), help=f"A text file with one prompt on each line.  [default: {SHIPPED}]")
@click.option("--prompts", "limit", type=WHOLE, help="Use only this many prompts, of every task alike.")
@click.option("--recurrence", type=WHOLE, help="The largest R.  [default: the model's own; twice that by pass]")
@tokenizer_option
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "auto"]), default="float32", show_default=True,
              help="auto: the checkpoint's.")  # fmt: skip
@click.option("--batch", type=WHOLE, default=8, show_default=True, help="Prompts in one forward; Psi is the same.")
@click.option("--context", type=WHOLE, help="Tokens of a prompt to use.  [default: the model's maximum]")
@click.option("--by", type=click.Choice(["layer", "task"]), help="Show Psi of each looped layer, or of each task.")
@click.option("--by-pass", is_flag=True, help="Show loss, experts and states of every pass instead of Psi.")
@click.option("--plot", type=click.Path(), help="Draw the result over R into this PNG, SVG or PDF file.")
@output_options
def routing_command(
    paths: tuple[str, ...],
    data: str | None,
    limit: int | None,
    recurrence: int | None,
    tokenizer: str | None,
    dtype: str,
    batch: int,
    context: int | None,
    by: str | None,
    by_pass: bool,
    plot: str | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Measure expert-path diversity Psi: how many experts a token visits over R passes, for each active one.

    One MODEL gives Psi for every R up to its own. Several models, or the file of a SWEEP that kept its models, give the
    paper's table: a row for each E, a column for each R, every model at the R that it was trained with. Each number is
    the mean over prompts, with the standard deviation over prompts.

    With --by-pass: for each R the loss, the distinct experts of a token so far, the overlap (Jaccard) of its experts
    with those of the previous and the first pass, the variance of the state over tokens, its relative change in this
    pass, and its relative distance to the fixed point.

    \b
    loopscale routing demo
    loopscale routing runs/tiny --data prompts.txt --recurrence 8 --plot psi.png
    loopscale routing sweep.toml --csv > psi.csv
    loopscale routing runs/tiny --by task
    loopscale routing runs/tiny --data prompts.txt --by-pass --plot passes.png
    """
    import torch

    from loopscale.model import loading
    from loopscale.model.passes import pass_diagnostics
    from loopscale.model.prompts import batches, batches_by_length
    from loopscale.model.psi import path_diversity

    prompts, tasks = _prompts(data, limit)
    folders = _models(paths)
    if len(folders) > 1 and (by or by_pass or recurrence):
        raise click.UsageError("--by, --by-pass and --recurrence go with one model")
    if by and plot:
        raise click.UsageError("--plot draws Psi over R; leave out --by")
    precision = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": None}[dtype]
    measured: list[tuple[str, Any]] = []
    with progress_bar("Routing", len(folders)) as bar:
        for done, folder in enumerate(folders, 1):
            model, words = loading.load(model_folder(folder), tokenizer, precision)
            longest = min(context or model.config.max_position_embeddings, model.config.max_position_embeddings)
            if by_pass:
                read = batches(words, prompts, batch, longest)
                _by_pass(pass_diagnostics(model, read, recurrence), len(prompts), plot, as_json, as_csv)
                return
            parts = (
                (ids, mask, [tasks[place] for place in places] if tasks else [])
                for places, ids, mask in batches_by_length(words, prompts, batch, longest)
            )
            measured.append((folder, path_diversity(model, parts, recurrence)))
            bar(done, len(folders))
    output = Output(len(prompts), SHIPPED if data is None else str(data), dtype, as_json, as_csv, plot)
    if len(measured) > 1:
        output.grid(measured)
    elif by is not None:
        output.parts(measured[0][1], by)
    else:
        output.one(measured[0][1])


def _prompts(data: str | None, limit: int | None) -> tuple[list[str], list[str]]:
    """Return the prompts and the task of each; a file's have none."""
    from loopscale.model.prompt_set import TASKS, prompt_set
    from loopscale.model.prompts import read_prompts

    if data is not None:
        return read_prompts(data)[:limit], []
    listed = prompt_set()
    of_each = None if limit is None else -(-limit // len(TASKS))
    pairs = [(prompt, task) for task, prompts in listed.items() for prompt in prompts[:of_each]][:limit]
    return [prompt for prompt, _ in pairs], [task for _, task in pairs]


def _models(paths: Sequence[str]) -> list[str]:
    """Return the models' folders; of a sweep's file, the models that it kept, each at its largest D."""
    from loopscale.evaluate import kept_models

    folders: list[str] = []
    for path in paths:
        of_sweep = kept_models(path)
        if of_sweep is None:
            folders.append(path)
        else:
            longest = {folder.parent: folder for folder in sorted(of_sweep, key=lambda one: float(one.name[1:]))}
            folders += [str(folder) for folder in longest.values()]
    return folders


@dataclass(frozen=True)
class Output:
    """How the results of one command are printed."""

    prompts: int
    source: str
    """Where the prompts come from."""
    dtype: str
    as_json: bool
    as_csv: bool
    plot: str | None

    def one(self, diversity: Any) -> None:
        """Print Psi of one model over R."""
        table = diversity.table()
        rows = list(table.records())
        if self._plain(table, {}):
            return
        cells = [f"{row['psi']:.4f} ± {row['std_prompts']:.4f}" for row in rows]
        names = [f"R={row['recurrence']}" for row in rows]
        print_wide_table(self._title(), ["E", *names], [[f"{rows[0]['experts']:g}", *cells]])
        last = rows[-1]
        say(
            f"at R = {last['recurrence']}: {last['psi_tokens']:.4f} over tokens, std {last['std_tokens']:.4f} over "
            f"{diversity.tokens.count:,} (token, layer) pairs and {last['std_layers']:.4f} over layers"
        )

    def grid(self, measured: Sequence[tuple[str, Any]]) -> None:
        """Print the table of E and R: every model at its own R, models of one E and R together."""
        from loopscale.model.psi import departures

        cells: dict[tuple[float, int], list[dict[str, Any]]] = {}
        for _, diversity in measured:
            row = list(diversity.table().records())[-1]
            cells.setdefault((row["experts"], row["recurrence"]), []).append(row)
        rows = [_pooled(cells[cell]) for cell in sorted(cells)]
        notes = departures({cell: _pooled(models)["psi"] for cell, models in cells.items()})
        if self._plain(
            Table.from_records(rows), {"departures": notes, "checked": "bounds 1 to min(E, R); no fall with R or E"}
        ):
            return
        passes = sorted({R for _, R in cells})
        lines = []
        for E in sorted({E for E, _ in cells}):
            means = [_pooled(cells[E, R]) if (E, R) in cells else None for R in passes]
            lines.append(
                [f"{E:g}", *("–" if row is None else f"{row['psi']:.4f} ± {row['std_prompts']:.4f}" for row in means)]
            )
        print_wide_table(self._title(), ["E", *(f"R={R}" for R in passes)], lines)
        most = max(row["models"] for row in rows)
        if most > 1:
            say(f"cells of several models (up to {most}) show the mean of their means and of their deviations")
        for sentence in notes or ["Psi lies in its bounds 1 to min(E, R) and never falls with R or with E."]:
            say(sentence)

    def parts(self, diversity: Any, by: str) -> None:
        """Print Psi by layer or by task."""
        if by == "task" and not diversity.tasks:
            raise InputError("prompts of a file have no task; leave out --data for prompts of five tasks")
        table = diversity.by_layer() if by == "layer" else diversity.by_task()
        if self._plain(table, {}):
            return
        rows = list(table.records())
        lines = []
        for key in dict.fromkeys(row[by] for row in rows):
            matching = [row for row in rows if row[by] == key]
            texts = [f"{row['psi']:.4f}" + (f" ± {row['std_prompts']:.4f}" if by == "task" else "") for row in matching]
            lines.append([str(key), *texts])
        names = [f"R={row['recurrence']}" for row in matching]
        over = "over tokens" if by == "layer" else "mean ± std over prompts"
        print_wide_table(f"Psi by {by}, {over}, {self._where()}", [by, *names], lines)

    def _title(self) -> str:
        return f"Psi over {self._where()}, mean ± std over prompts"

    def _where(self) -> str:
        return f"{counted(self.prompts, 'prompt')}, {self.dtype}"

    def _plain(self, table: Table, more: dict[str, Any]) -> bool:
        """Draw and print JSON or CSV where that is asked for; tell whether it was."""
        if self.plot is not None:
            _draw(table, self.plot)
        if self.as_json:
            facts = {"kind": "routing", "prompts": self.prompts, "source": self.source, "dtype": self.dtype}
            print_json({**facts, **more, "rows": list(table.records())})
        elif self.as_csv:
            click.echo(table.csv(), nl=False)
        return self.as_json or self.as_csv


def _pooled(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the means over models of one E and R."""
    first = rows[0]
    names = ("psi", "std_prompts", "psi_tokens", "std_tokens", "std_layers")
    means = {name: sum(row[name] for row in rows) / len(rows) for name in names}
    return {"experts": first["experts"], "recurrence": first["recurrence"], **means, "models": len(rows)}


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


def _draw(table: Table, path: str) -> None:
    from loopscale.figures.outcomes import draw_psi
    from loopscale.figures.style import new_figure, save

    figure, (axes,) = new_figure()
    draw_psi(Table({**table.columns, "spread": table.columns["std_prompts"]}), axes)
    save(figure, path)
