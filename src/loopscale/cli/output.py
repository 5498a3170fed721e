"""How commands print: the console, tables and JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Protocol

import click
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from loopscale.core.files import finite
from loopscale.core.text import fact

if TYPE_CHECKING:
    from loopscale.core.tables import Table

PIPE_WIDTH = 140
"""Columns of a table that goes to a file or a pipe."""


class _Console(Console):
    """A console that reports a closed pipe as Python does; rich's own ends the process with exit code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Return the console for tables and sentences. ``NO_COLOR`` removes every style, bold too."""
    out = _Console(color_system=None if os.environ.get("NO_COLOR") else "auto", highlight=False)
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = PIPE_WIDTH
    return out


def say(text: str, *, bold: bool = False) -> None:
    """Print sentences, each line of them wrapped to the terminal; brackets are text, as names of files have them."""
    out = console()
    for line in text.splitlines():
        wrapped = wrap(line, out.width, break_long_words=False, break_on_hyphens=False)
        out.print(Text("\n".join(wrapped), "bold" if bold else ""), soft_wrap=True)


def say_facts(facts: Mapping[str, str]) -> None:
    """Print labelled facts, one below the other; those without a text are left out."""
    for label, text in facts.items():
        if text:
            click.echo("\n".join(fact(label, text)))


Cell = str | Text


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    left: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print a table: numbers align right, columns in ``left`` align left and may wrap.

    Columns in ``optional`` are left out, the first first, while the table is wider than the terminal.
    """
    out, body = console(), [tuple(row) for row in rows]
    shown, hidden = list(columns), []
    table = rich_table(columns, body, left)
    for name in optional:
        if Measurement.get(out, out.options.update(width=10_000), table).maximum <= out.width:
            break
        shown.remove(name)
        hidden.append(name)
        table = rich_table(columns, body, left, shown)
    if title:
        say(title, bold=True)
    with out.capture() as drawn:
        out.print(table)
    click.echo(re.sub(r" +$", "", drawn.get(), flags=re.M), nl=False, color=out.color_system is not None)
    if hidden:
        say(f"Not shown in {out.width} columns: {', '.join(hidden)}.")


def rich_table(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], left: Sequence[str] = (), shown: Sequence[str] | None = None
) -> RichTable:
    """Return a table in the one style of all commands, that of ``loopscale.core.text.text_table``.

    ``shown`` names the columns to show, all unless given. Brackets in a cell are text; styled cells are ``Text``.
    """
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    chosen = list(columns) if shown is None else shown
    for name in chosen:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left, overflow="fold")
    indices = [list(columns).index(name) for name in chosen]
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in (row[index] for index in indices)))
    return table


def columns_by_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[list[int]]:
    """Return the columns of each table that a wide one becomes: the first, and as many others as the screen holds."""
    widths = [
        max([*map(len, heading.split("\n")), *(len(row[k]) for row in rows)]) for k, heading in enumerate(columns)
    ]
    tables: list[list[int]] = []
    for k in range(1, len(columns)):
        if not tables or sum(widths[i] + 2 for i in (*tables[-1], k)) - 2 > console().width:
            tables.append([0])
        tables[-1].append(k)
    return tables


def print_wide_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table of many columns as several below each other, each with the first column."""
    for number, shown in enumerate(columns_by_table(columns, rows)):
        part = [[row[k] for k in shown] for row in rows]
        print_table("" if number else title, [columns[k] for k in shown], part)


class Result(Protocol):
    """What can be printed in each of the three forms that commands offer."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""

    def table(self) -> Table:
        """Return the rows for CSV."""

    def summary(self, verbose: bool = False) -> str:
        """Return the text for people."""


def print_result(result: Result, as_json: bool, as_csv: bool, verbose: bool) -> None:
    """Print a result as JSON, as CSV or as text."""
    if as_json:
        print_json(result.to_dict())
    elif as_csv:
        click.echo(result.table().csv(), nl=False)
    else:
        click.echo(result.summary(verbose))


def print_json(data: object) -> None:
    """Print strict JSON: NaN and infinities become null."""
    click.echo(json.dumps(finite(data), indent=1, allow_nan=False))
