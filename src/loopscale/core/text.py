"""Text for terminals of 80 columns: tables, labelled facts, curves and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from textwrap import wrap

WIDTH = 80
LABEL = 10
"""Columns of the label in front of a fact."""


def capital(text: str) -> str:
    """Return ``text`` as the start of a sentence."""
    return text[:1].upper() + text[1:]


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = ()) -> str:
    """Return a table: a header, a rule and the rows; numbers align right, columns in ``left`` align left."""
    cells = [tuple(columns), *(tuple(row) for row in rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(columns))]
    lines = [
        "  ".join(
            cell.ljust(width) if name in left else cell.rjust(width)
            for name, cell, width in zip(columns, row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "─" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]])


def fact(label: str, text: str) -> list[str]:
    """Return a labelled fact as lines: ``  error     0.007 nats``. Long ones continue below their start."""
    head = f"  {label:<{LABEL - 1}} "
    return wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head)) or [head.rstrip()]


def warning(problem: str, remedy: str = "", kind: str = "warning") -> list[str]:
    """Return a warning as lines, with what to do about it on the next line."""
    lines = wrap(f"{kind}: {problem}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    if remedy:
        lines += wrap(f"help: {remedy}", WIDTH, initial_indent="  ", subsequent_indent=" " * 8, break_on_hyphens=False)
    return lines


def side_by_side(entries: Sequence[tuple[str, ...]], width: int = WIDTH, indent: int = 2) -> Iterator[str]:
    """Yield short entries in as many columns as fit, row by row; the parts of an entry align among the rows."""
    for count in (4, 3, 2, 1):
        rows = [entries[k : k + count] for k in range(0, len(entries), count)]
        widths = [
            [max(len(row[k][part]) for row in rows if k < len(row)) for part in range(len(entries[0]))]
            for k in range(min(count, len(entries)))
        ]
        if count == 1 or indent + sum(sum(parts) + len(parts) - 1 for parts in widths) + 3 * (len(widths) - 1) <= width:
            break
    for row in rows:
        texts = (
            " ".join(part.ljust(size) for part, size in zip(entry, parts, strict=True))
            for entry, parts in zip(row, widths, strict=False)
        )
        yield (" " * indent + "   ".join(texts)).rstrip()


BARS = " ▁▂▃▄▅▆▇█"


def curve(values: Sequence[float], height: int = 5, width: int = 60) -> str:
    """Return a curve as lines of blocks, with the largest and the smallest value beside it.

    More values than columns are averaged; values that are not finite count as the largest that is.
    """
    finite = [value for value in values if isfinite(value)]
    if not finite:
        return ""
    count = min(width, len(values))
    bins = [values[k * len(values) // count : (k + 1) * len(values) // count] for k in range(count)]
    most = max(finite)
    means = [sum(min(value, most) if isfinite(value) else most for value in part) / len(part) for part in bins]
    low, high = min(means), max(means)
    span = high - low or 1.0
    levels = [1 + round((height * 8 - 1) * (mean - low) / span) for mean in means]
    labels = {0: f"{high:.4g}", height - 1: f"{low:.4g}"}
    left = max(map(len, labels.values()))
    lines = []
    for row in range(height):
        below = 8 * (height - 1 - row)
        bars = "".join(BARS[min(8, max(0, level - below))] for level in levels)
        lines.append(f"  {labels.get(row, ''):>{left}} {bars}".rstrip())
    return "\n".join(lines)
