"""Terminal output: one console, one style of table and one kind of progress bar for every command."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable

PIPE_WIDTH = 140
"""Columns of a table that goes to a file or a pipe."""

LINE_EVERY = 10.0
"""Seconds between two progress lines where there is no terminal; shorter work prints none."""


class _Console(Console):
    """A console that reports a closed pipe as Python does; rich's own ends the process with exit code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(stderr: bool = False) -> Console:
    """Return the console for tables (or, with ``stderr``, for progress). ``NO_COLOR`` removes every style, bold too."""
    plain = bool(os.environ.get("NO_COLOR"))
    out = _Console(stderr=stderr, color_system=None, highlight=False) if plain else _Console(stderr=stderr)
    if not out.is_terminal and not stderr and "COLUMNS" not in os.environ:
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
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in shown:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left, overflow="fold")
    indices = [list(columns).index(name) for name in shown]
    for row in rows:
        table.add_row(*(row[index] for index in indices))
    return table


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Show progress on standard error while the block runs: a bar on a terminal, a line every few seconds elsewhere.

    The block calls the function it is given with the number done and the total.
    """
    from rich.progress import Progress

    out = console(stderr=True)
    if not out.is_terminal:
        yield _line_printer(out, what)
        return
    with Progress(console=out, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _line_printer(out: Console, what: str) -> Callable[[int, int], None]:
    printed_at = time.monotonic()

    def update(done: int, of: int) -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at >= LINE_EVERY:
            printed_at = time.monotonic()
            out.print(f"{what}: {done} of {of}", highlight=False)

    return update
