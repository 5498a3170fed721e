"""Readable tables, and JSON that every parser takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from loopscale.files import finite


def console() -> Console:
    """Return the console that tables go to; wide enough for one when the output is a file or a pipe."""
    wide = Console()
    return wide if wide.is_terminal else Console(width=140)


def print_json(data: object) -> None:
    """Print strict JSON: NaN and infinities become null."""
    click.echo(json.dumps(finite(data), indent=1, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = ()) -> None:
    """Print a table; numbers stand right, the columns in ``left`` stand left."""
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left)
    for row in rows:
        table.add_row(*row)
    out = console()
    if title:
        out.print(f"[bold]{title}[/]", highlight=False)
    out.print(table)


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error while the block runs; it takes the number done and the total."""
    from rich.progress import Progress

    out = Console(stderr=True)
    with Progress(console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, of: bar.update(task, completed=done, total=of)
