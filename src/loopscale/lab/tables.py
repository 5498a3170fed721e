"""Tables of runs: one row for each, as CSV with named columns, and means over seeds."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from loopscale.core.errors import InputError
from loopscale.core.files import write_text
from loopscale.core.numerics import student_quantile

Row = dict[str, Any]


@dataclass(frozen=True)
class RunColumns:
    """The columns of a table of runs."""

    name: str
    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    reals: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns, as they are written."""
        return (*self.texts, *self.numbers, *self.reals)

    def write(self, path: Path, rows: Sequence[Row]) -> None:
        """Write all rows as CSV; real numbers have six digits, and what a failed run lacks is empty."""
        lines = [",".join(self.columns), *(",".join(self._cell(row, name) for name in self.columns) for row in rows)]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(f"{line}\n" for line in lines))

    def _cell(self, row: Row, name: str) -> str:
        value = row.get(name)
        if value is None:
            return ""
        return f"{value:.6g}" if name in self.reals else str(value)

    def read(self, path: Path) -> list[Row]:
        """Read what ``write`` wrote."""
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if rows and set(self.columns) - set(rows[0]):
            missing = ", ".join(sorted(set(self.columns) - set(rows[0])))
            raise InputError(
                f"{path}: not the runs of {self.name}: it lacks the columns {missing}; choose another folder (--out)"
            )
        readers: dict[str, Any] = {**dict.fromkeys(self.numbers, int), **dict.fromkeys(self.reals, float)}
        return [
            {name: readers.get(name, str)(row[name]) if row[name] else None for name in self.columns} for row in rows
        ]

    def shipped(self) -> list[Row]:
        """Read the runs that come with loopscale."""
        with resources.as_file(resources.files("loopscale.lab") / "data" / f"{self.name}.csv") as path:
            return self.read(path)


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its 95% interval; fewer than three have none."""

    value: float
    low: float | None
    high: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Return the mean of some values, one for each seed, with Student's interval."""
        count, mean = len(values), fmean(values)
        if count < 3:
            return cls(mean, None, None, count)
        half = student_quantile(0.95, count - 1) * stdev(values) / math.sqrt(count)
        return cls(mean, mean - half, mean + half, count)

    @property
    def interval(self) -> list[float] | None:
        """The interval as plain values; None without one."""
        return None if self.low is None or self.high is None else [self.low, self.high]

    @property
    def clear(self) -> bool:
        """Whether the interval of a difference excludes zero."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"value": self.value, "interval": self.interval, "seeds": self.seeds}
