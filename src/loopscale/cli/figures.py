"""``loopscale figures``: the paper's kinds of figures, from any law, sweep and results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from loopscale.cli.params import COUNT
from loopscale.cli.reading import read_law_runs, reading_options
from loopscale.cli.subjects import law_option
from loopscale.cli.verbs import verb
from loopscale.core.errors import nearest, shown
from loopscale.core.files import make_folder
from loopscale.core.progress import progress_bar
from loopscale.core.quantities import counted
from loopscale.core.text import WIDTH
from loopscale.fitting.data.again import law_data
from loopscale.scaling import DEFAULT, ScalingLaw

if TYPE_CHECKING:
    from loopscale.core.tables import Table


@verb("figures")
@law_option
@click.option("--data", type=click.Path(), help="The runs to show.  [default: those that the law was fitted to]")
@reading_options
@click.option("--hold-out", "held_out", help="Rows held out to compare mappings, like R=16.  [default: largest R]")
@click.option("--results", type=click.Path(), help="Evaluation results, a row for each model, recurrence and task.")
@click.option("--psi", type=click.Path(), help="Expert-path diversity: experts, recurrence, psi, spread.")
@click.option("--metrics", type=click.Path(), multiple=True, help="Training metrics (JSON lines); may be repeated.")
@click.option("--test-time", type=click.Path(), help="Loss of a checkpoint at each recurrence: recurrence, loss.")
@click.option(
    "--flops", type=COUNT, default="5e21", show_default=True, help="Training compute of the planning figures."
)
@click.option("--only", help="Draw only these: names like multiplier, or figure-1 to figure-7; commas join them.")
@click.option("--tables", is_flag=True, help="Also write the paper's tables as .tex, .html and .csv.")
@click.option("--format", "formats", default="png,svg,pdf", show_default=True, help="File formats to write.")
@click.option(
    "--style",
    type=click.Choice(("note", "paper", "slide")),
    default="note",
    show_default=True,
    help="paper: serif type, no caption. slide: large type. note: with the caption below.",
)
@click.option(
    "--width",
    type=click.Choice(("column", "page")),
    help="Of a two-column paper: 3.3 or 6.75 inches, panels side by side.",
)
@click.option("--out", type=click.Path(), required=True, help="Folder for the figures and their tables.")
def figures_command(
    law: ScalingLaw,
    data: str | None,
    held_out: str | None,
    results: str | None,
    psi: str | None,
    metrics: tuple[str, ...],
    test_time: str | None,
    flops: float,
    only: str | None,
    tables: bool,
    formats: str,
    out: str,
    style: str,
    width: str | None,
    **reading: Any,
) -> None:
    """Draw the paper's figures from any law, sweep and results; the numbers drawn are saved beside each as CSV.

    Each picture has a name; figure-1 to figure-7 arrange them as the paper does. A fitted law comes with its own runs,
    read as for the fit. For published laws the figures of a fit show a sweep simulated from the law unless --data names
    one. A figure whose input file is not given is left out; for the paper's own law, its published scores and routing
    are used instead, and labelled as such.

    \b
    loopscale figures --out figures
    loopscale figures --law law.json --data runs.csv --out figures
    loopscale figures --only joint-optimum,recurrence-map --format pdf --out figures
    loopscale figures --law law.json --only loss-compute --style paper --out figures
    loopscale figures --only figure-2,figure-5 --tables --out figures
    """
    from loopscale.figures import GALLERY
    from loopscale.figures.drawing import PAPER_FIGURES, DrawingTask, draw_all
    from loopscale.figures.results import PSI, RESULTS, TEST_TIME, paper_psi, paper_results, read_table
    from loopscale.figures.sources import Sources
    from loopscale.figures.style import FORMATS, STYLES, WIDTHS
    from loopscale.figures.tables import TABLES, write_tables

    kinds = _chosen(formats, FORMATS, "--format")
    names = _chosen(only, (*GALLERY, *PAPER_FIGURES), "--only") if only else list(GALLERY)
    data = data or law_data(law)
    runs = None if data is None else read_law_runs(data, law, reading)
    published = law.name == DEFAULT  # its own scores and routing stand in for files that are not given
    sources = Sources(
        law=law, observations=runs, held_out=held_out, metrics=_metrics(metrics), flops=flops,
        results=read_table(results, RESULTS) if results else paper_results() if published else None,
        psi=read_table(psi, PSI) if psi else paper_psi() if published else None,
        test_time=None if test_time is None else read_table(test_time, TEST_TIME),
        origins={
            name: "The paper's published numbers." if given is None else f"From {given}."
            for name, given in (("results", results), ("psi", psi))
        },
    )  # fmt: skip
    folder = make_folder(out)
    look = STYLES[style] if width is None else replace(STYLES[style], width=WIDTHS[width])
    with progress_bar("Drawing", len(names)) as bar:
        left_out = draw_all(DrawingTask(sources, folder, kinds, look), names, _progress(names, bar))
    drawn = len(names) - len(left_out)
    many = counted(drawn, "figure")
    click.echo(f"Drew {many} in {folder}, each as {', '.join(kinds)} with its numbers as CSV.")
    for line in _not_drawn(left_out):
        click.echo(line)
    if tables:
        missing = write_tables(sources, folder)
        click.echo(f"Wrote {counted(len(TABLES) - len(missing), 'table')} there, each as tex, html and csv.")
        for name, reason in missing.items():
            click.echo(f"not written: table {name}: {reason}")


def _not_drawn(left_out: dict[str, str]) -> Iterator[str]:
    """Yield why figures were not drawn, those with the same reason together."""
    for reason in dict.fromkeys(left_out.values()):
        names = ", ".join(name for name, why in left_out.items() if why == reason)
        yield from wrap(f"not drawn: {names}: {reason}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _progress(names: Sequence[str], bar: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Return what reports progress: the bar in a terminal, a line per figure where the output is a file or a pipe."""
    if sys.stderr.isatty():
        return bar

    def line(done: int, total: int) -> None:
        click.echo(f"{done} of {total}: {names[done - 1]}", err=True)

    return line


def _chosen(text: str, known: Iterable[str], option: str) -> list[str]:
    """Read a comma-separated list of known names."""
    names, listed = [part.strip() for part in text.split(",") if part.strip()], list(known)
    for name in names or [""]:
        if name not in listed:
            raise click.BadParameter(
                f"{shown(name)} is not known{nearest(name, listed)}; choose from {', '.join(listed)}",
                param_hint=f"'{option}'",
            )
    return names


def _metrics(paths: tuple[str, ...]) -> Table | None:
    """Read training metrics, each file a separate run."""
    from loopscale.figures.curves import stacked
    from loopscale.figures.results import METRICS, read_table

    if not paths:
        return None
    tables = [read_table(path, METRICS) for path in paths]
    metrics = [{name: table.columns[name] for name in METRICS.columns} for table in tables]
    return stacked([("run", Path(path).stem, columns) for path, columns in zip(paths, metrics, strict=True)])
