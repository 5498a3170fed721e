"""Tidy tables: named columns of equal length."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from loopscale.core.errors import MissingExtraError
from loopscale.core.files import write_text


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name; ``to_pandas`` gives a data frame."""

    columns: Mapping[str, Sequence[Any]]

    def __post_init__(self) -> None:
        if len({len(column) for column in self.columns.values()}) > 1:
            raise ValueError(f"columns of different lengths: { {k: len(v) for k, v in self.columns.items()} }")

    @classmethod
    def from_arrays(cls, shape: tuple[int, ...], **columns: Any) -> Table:
        """Return one row for each cell of a grid; each column broadcasts to ``shape``."""
        return cls({name: np.broadcast_to(value, shape).ravel().tolist() for name, value in columns.items()})

    @classmethod
    def from_records(cls, records: Sequence[Mapping[str, Any]]) -> Table:
        """Return a table of rows that all have the same keys."""
        return cls({name: [row[name] for row in records] for name in records[0]} if records else {})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the rows."""
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def to_pandas(self) -> Any:
        """Return the table as a pandas data frame."""
        import narwhals

        if find_spec("pandas") is None:
            raise MissingExtraError(
                "to_pandas() needs the package 'pandas', which is not installed: pip install pandas"
            )
        columns = {name: _one_type(list(column)) for name, column in self.columns.items()}
        return narwhals.from_dict(columns, backend="pandas").to_native()

    def __repr__(self) -> str:
        return f"<Table of {len(self)} rows: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        """Return the first rows as HTML, for notebooks."""
        more = f"<p>{len(self) - SHOWN:,} more rows</p>" if len(self) > SHOWN else ""
        return f"{self.html(SHOWN)}{more}"

    def html(self, rows: int | None = None) -> str:
        """Return the table, or its first ``rows``, as an HTML table."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        lines = (
            "".join(f"<td>{escape(_short(cell))}</td>" for cell in row.values()) for row in islice(self.records(), rows)
        )
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def csv(self) -> str:
        """Return the table as CSV text; a list in a cell is joined by spaces."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        for row in zip(*self.columns.values(), strict=True):
            writer.writerow([" ".join(map(str, cell)) if isinstance(cell, list | tuple) else cell for cell in row])
        return out.getvalue()

    def markdown(self) -> str:
        """Return the table in Markdown."""
        return markdown(list(self.columns), self._text())

    def latex(self) -> str:
        """Return the table as a LaTeX tabular for the package booktabs."""
        head = " & ".join(_latex(name) for name in self.columns)
        body = [" & ".join(_latex(cell) for cell in row) for row in self._text()]
        lines = [rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", r"\toprule", rf"{head} \\", r"\midrule"]
        return "\n".join([*lines, *(rf"{row} \\" for row in body), r"\bottomrule", r"\end{tabular}"]) + "\n"

    def _text(self) -> list[list[str]]:
        return [["" if cell is None else str(cell) for cell in row.values()] for row in self.records()]

    def save(self, path: str | Path) -> None:
        """Write the table as a CSV file."""
        write_text(path, self.csv())


SHOWN = 50
"""Rows that a notebook shows."""


def _one_type(column: list[Any]) -> list[Any]:
    """Return whole numbers among real ones as real ones: a frame's column has one type."""
    numbers = [isinstance(cell, int | float) and not isinstance(cell, bool) for cell in column if cell is not None]
    if not all(numbers) or not any(isinstance(cell, float) for cell in column):
        return column
    return [None if cell is None else float(cell) for cell in column]


def _short(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as a Markdown table."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "−": "--",
    "–": "--",
    "†": r"$^\dagger$",
}


def _latex(text: str) -> str:
    """Return text as LaTeX shows it."""
    return "".join(_LATEX.get(sign, sign) for sign in text)
