"""How commands print: the console, tables and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence

import click
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable

from loopscale.core.files import finite

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
    table = _table(columns, body, shown, left)
    for name in optional:
        if Measurement.get(out, out.options.update(width=10_000), table).maximum <= out.width:
            break
        shown.remove(name)
        hidden.append(name)
        table = _table(columns, body, shown, left)
    if title:
        out.print(f"[bold]{title}[/]", highlight=False)
    out.print(table)
    if hidden:
        out.print(f"Not shown in {out.width} columns: {', '.join(hidden)}.", highlight=False)


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[str], left: Sequence[str]
) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in shown:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left, overflow="fold")
    indices = [list(columns).index(name) for name in shown]
    for row in rows:
        table.add_row(*(row[index] for index in indices))
    return table


def print_json(data: object) -> None:
    """Print strict JSON: NaN and infinities become null."""
    click.echo(json.dumps(finite(data), indent=1, allow_nan=False))
