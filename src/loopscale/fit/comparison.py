"""Scores of mappings on held-out rows, and the tables that show them."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from loopscale.errors import InputError
from loopscale.tables import Table


@dataclass(frozen=True)
class Score:
    """How well one mapping predicts one held-out slice."""

    slice: str
    mapping: str
    coefficients: int
    """How many were fitted."""
    rows: int
    runs: int
    rmse: float
    """Nats."""
    best: bool
    difference: float
    """RMSE above the best mapping's."""
    low: float | None
    high: float | None
    """The difference's interval over resampled held-out runs, both mappings on the same runs; None for a single run."""
    worse: float
    """Share of those resamples in which it is worse than the best."""


@dataclass(frozen=True)
class Comparison:
    """Held-out errors of several mappings, all fitted by the same procedure to the same rows."""

    source: str
    outer: str
    scores: tuple[Score, ...]
    level: float
    count: int
    notes: tuple[str, ...]

    @property
    def slices(self) -> tuple[str, ...]:
        """The slices, in the order given."""
        return tuple(dict.fromkeys(score.slice for score in self.scores))

    @property
    def mappings(self) -> tuple[str, ...]:
        """The mappings, from the simplest."""
        return tuple(dict.fromkeys(score.mapping for score in self.scores))

    def score(self, part: str, mapping: str) -> Score:
        """Return the score of one mapping on one slice."""
        for each in self.scores:
            if (each.slice, each.mapping) == (part, mapping):
                return each
        raise InputError(f"no score for {part!r} and {mapping!r}; slices: {', '.join(self.slices)}")

    def table(self) -> Table:
        """Return one row per slice and mapping."""
        return Table.from_records([asdict(each) for each in self.scores])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        out = io.StringIO()
        console = Console(file=out, width=160)
        console.print(table(self), differences(self), sep="\n")
        lines = [line.rstrip() for line in out.getvalue().splitlines()]  # rich pads titles with spaces
        return "\n".join([*lines, *self.notes])


def table(comparison: Comparison) -> RichTable:
    """Return the paper's table: a row for each slice, a column for each mapping, the best marked."""
    title, legend = f"Held-out RMSE in nats, {comparison.outer} law", "* lowest   ~ not told apart from it"
    grid = RichTable("held out", title=title, caption=legend, title_justify="left", caption_justify="left")
    grid.add_column("rows (runs)", justify="right")
    for name in comparison.mappings:
        size = comparison.score(comparison.slices[0], name).coefficients
        grid.add_column(f"{name} ({size})", justify="right")
    for part in comparison.slices:
        scores = [comparison.score(part, name) for name in comparison.mappings]
        grid.add_row(
            part, f"{scores[0].rows} ({scores[0].runs})", *(f"{each.rmse:.4f} {_mark(each)}" for each in scores)
        )
    return grid


def differences(comparison: Comparison) -> RichTable:
    """Return how much worse than the best each mapping is, with its interval."""
    title = f"RMSE above the lowest, over {comparison.count} resamples of the held-out runs"
    grid = RichTable("held out", "mapping", title=title, title_justify="left")
    for heading in ("above", f"{comparison.level:.0%} interval", "worse in"):
        grid.add_column(heading, justify="right")
    for each in comparison.scores:
        if not each.best:
            interval = "one run" if each.low is None else f"{each.low:+.4f} to {each.high:+.4f}"
            grid.add_row(each.slice, each.mapping, f"{each.difference:+.4f}", interval, f"{each.worse:.0%}")
    return grid


def _mark(score: Score) -> str:
    if score.best:
        return "*"
    return "~" if score.low is None or score.low <= 0 else " "
