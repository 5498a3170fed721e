"""How commands print: the console, tables and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import click
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable

from loopscale.core.files import finite

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
    out = _Console(color_system=None, highlight=False) if os.environ.get("NO_COLOR") else _Console()
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = PIPE_WIDTH
    return out


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
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
        out.print(f"[bold]{title}[/]", highlight=False)
    out.print(table)
    if hidden:
        out.print(f"Not shown in {out.width} columns: {', '.join(hidden)}.", highlight=False)


def rich_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = (), shown: Sequence[str] | None = None
) -> RichTable:
    """Return a table in the one style of all commands, that of ``loopscale.core.text.text_table``.

    ``shown`` names the columns to show, all unless given.
    """
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    chosen = list(columns) if shown is None else shown
    for name in chosen:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left, overflow="fold")
    indices = [list(columns).index(name) for name in chosen]
    for row in rows:
        table.add_row(*(row[index] for index in indices))
    return table


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
