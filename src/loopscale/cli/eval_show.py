"""What ``loopscale eval`` prints: progress while it works, and its table in five forms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Self

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from loopscale.cli.show import console, print_json, print_table
from loopscale.errors import InputError
from loopscale.evaluate import Row, Suite, case_study, fit_saturation, printed, published_rows, tidy, wide
from loopscale.evaluate.results import PAPER, labels
from loopscale.evaluate.saturation import LEAST
from loopscale.quantities import format_count

COLUMNS = 6
"""Scores that fit a screen beside each other."""


@dataclass(frozen=True)
class Shown:
    """In which form to print."""

    json: bool
    csv: bool
    markdown: bool
    latex: bool


class Bar:
    """What is being done: a bar on a terminal, a line for each result elsewhere."""

    def __init__(self, steps: int) -> None:
        out = Console(stderr=True)
        self._lines = None if out.is_terminal else out
        self._bar = Progress(console=out, transient=True, disable=not out.is_terminal)
        self._task = self._bar.add_task("", total=steps)
        self._current = ""

    def now(self, what: str, done: int = 0) -> None:
        """Show what is being done, and how many requests of it are finished."""
        self._current = what
        self._bar.update(self._task, description=f"{escape(what)}: {done:,}")

    def finished(self, results: int = 1) -> None:
        """Go on by so many results."""
        self._bar.advance(self._task, results)
        if self._lines is not None and self._current:
            self._lines.print(f"{self._current}: done", highlight=False, markup=False)
        self._current = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


def show_results(suite: Suite, rows: Sequence[Row], shown: Shown, *, published: bool, tidy_path: str | None) -> None:
    """Print the table in the form asked for, and write the tidy one."""
    everything = [*rows, *(published_rows(suite, case_study()) if published else ())]
    if tidy_path is not None:
        tidy(everything).save(tidy_path)
    if shown.json:
        print_json({"kind": "evaluations", "suite": suite.name, "rows": [asdict(row) for row in everything]})
    elif shown.csv:
        click.echo(wide(suite, everything).csv(), nl=False)
    elif shown.markdown or shown.latex:
        table = printed(suite, everything)
        click.echo(table.markdown() if shown.markdown else table.latex(), nl=False)
    else:
        _print(suite, everything)


def _print(suite: Suite, rows: Sequence[Row]) -> None:
    names = labels(suite, rows)
    for start in range(0, len(names), COLUMNS):
        table = printed(suite, rows, names[start : start + COLUMNS])
        lines = [[escape(str(cell)) for cell in row.values()] for row in table.records()]
        print_table("" if start else f"suite {escape(suite.name)}", list(table.columns), lines, left=("model", "R"))
    for note in _notes(suite, rows):
        console().print(note, highlight=False, markup=False)


def _notes(suite: Suite, rows: Sequence[Row]) -> Iterator[str]:
    yield from _curves(suite, rows)
    for name, flops in {
        row.model: row.training_flops for row in rows if row.training_flops and not row.published
    }.items():
        yield f"{name}: {format_count(flops)} training FLOPs"
    if any(row.published for row in rows):
        yield f"{PAPER} {case_study().source}, as printed; its compute is over its own baseline"


def _curves(suite: Suite, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line on the saturating curve of each model's loss."""
    for label in (each.label for each in suite.benchmarks if each.metric == "loss"):
        for model in dict.fromkeys(row.model for row in rows if not row.exit and label in row.scores):
            found = [row for row in rows if row.model == model and not row.exit and label in row.scores]
            passes, losses = [row.recurrence for row in found], [row.scores[label].value for row in found]
            if len(found) < LEAST:
                continue
            try:
                curve = fit_saturation(passes, losses)
            except InputError as error:
                yield f"{model}: {label}: {error}"
                continue
            rising = f"; rises from R = {curve.rising_from}, not fitted" if curve.rising_from else ""
            yield (
                f"{model}: {label} ≈ {curve.once:.4f} − {curve.kappa1:.4f} (1 − exp(−(R − 1) / {curve.kappa2:.2f})), "
                f"limit {curve.limit:.4f}, rmse {curve.rmse:.4f}{rising}"
            )
