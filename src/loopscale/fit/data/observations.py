"""Observations: the losses of a sweep, one row per (run, D), with the run each row belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscale.arrays import BoolArray, FloatArray, IntArray
from loopscale.errors import InputError
from loopscale.fit.data.read import Rows, csv_columns, frame_columns, read_columns, read_rows
from loopscale.laws import Counting, Points
from loopscale.tables import Table


@dataclass(frozen=True, eq=False)
class Observations:
    """Losses seen in training, and what was trained."""

    points: Points
    """One-dimensional arrays of one length, in raw counts."""
    loss: FloatArray
    run: NDArray[np.str_]
    """The run of each row; several rows of one run are not independent."""
    source: str
    """What produced the rows: a file, a sweep, a simulation."""
    counts: Counting
    """Whether the counts include embeddings."""
    notes: tuple[str, ...] = ()
    """What was detected or assumed on reading."""
    finished: BoolArray | None = None
    """False where a row is a checkpoint in mid-schedule; None where that is not known."""

    def __post_init__(self) -> None:
        count = len(self.loss)
        p = self.points
        given = (p.active, p.tokens, p.recurrence, p.experts, p.loop, p.total, self.run, self.finished)
        if any(each is not None and np.shape(each) != (count,) for each in given):
            raise InputError(
                f"{self.source}: points, run and finished should all have one entry for each of {count} losses"
            )
        bad = np.flatnonzero(~(np.isfinite(self.loss) & (self.loss > 0)))
        if len(bad):
            raise InputError(
                f"{self.source}: row {bad[0] + 1}: loss is {self.loss[bad[0]]:g}; it should be finite and above zero"
            )

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def runs(self) -> NDArray[np.str_]:
        """The distinct runs, in order of first appearance."""
        _, first = np.unique(self.run, return_index=True)
        return self.run[np.sort(first)]

    def where(self, chosen: BoolArray | IntArray | slice) -> Observations:
        """Return the chosen rows only, by mask or by index (an index may repeat)."""
        p = self.points
        points = Points(
            p.active[chosen],
            p.tokens[chosen],
            p.recurrence[chosen],
            p.experts[chosen],
            None if p.loop is None else p.loop[chosen],
            None if p.total is None else p.total[chosen],
        )
        finished = None if self.finished is None else self.finished[chosen]
        return replace(self, points=points, loss=self.loss[chosen], run=self.run[chosen], finished=finished)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        columns: Mapping[str, str] | None = None,
        units: Mapping[str, float] | None = None,
        source: str = "frame",
        counts: Counting = Counting.WITHOUT_EMBEDDINGS,
    ) -> Observations:
        """Take any frame that narwhals knows: pandas, polars, pyarrow.

        ``columns`` says which column holds a field where its name does not, as in ``{"loss": "c4_en"}``; ``units``
        what a count is in, as in ``{"active": 1e9}``, where neither the header nor the magnitude tells.
        """
        return cls._of(read_rows(frame_columns(frame, source), columns or {}, units or {}, source), source, counts)

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        columns: Mapping[str, str] | None = None,
        units: Mapping[str, float] | None = None,
        counts: Counting = Counting.WITHOUT_EMBEDDINGS,
    ) -> Observations:
        """Read a ``.csv``, ``.csv.gz``, ``.tsv`` or ``.parquet`` file; options as for :meth:`from_frame`."""
        return cls._of(read_rows(read_columns(path), columns or {}, units or {}, str(path)), str(path), counts)

    @classmethod
    def from_csv(
        cls, text: str, *, source: str = "runs.csv", counts: Counting = Counting.WITHOUT_EMBEDDINGS
    ) -> Observations:
        """Read the text of a CSV file; ``source`` names it in errors."""
        return cls._of(read_rows(csv_columns(text, source), {}, {}, source), source, counts)

    def columns(self) -> dict[str, list[Any]]:
        """Return the rows under names that :meth:`read` knows, in raw counts."""
        p = self.points
        columns: dict[str, Any] = {"run": self.run, "N_act (raw)": p.active, "E": p.experts, "R": p.recurrence}
        columns |= {} if p.loop is None else {"N_loop (raw)": p.loop}
        columns |= {} if p.total is None else {"N_total (raw)": p.total}
        columns |= {"D (raw)": p.tokens, "loss": self.loss}
        columns |= {} if self.finished is None else {"finished": self.finished}
        return {name: np.asarray(column).tolist() for name, column in columns.items()}

    def csv(self) -> str:
        """Return the rows as CSV text that :meth:`from_csv` reads."""
        return Table(self.columns()).csv()

    def to_csv(self, path: str | Path) -> None:
        """Write the rows as :meth:`read` reads them."""
        Table(self.columns()).save(path)

    @classmethod
    def _of(cls, rows: Rows, source: str, counts: Counting) -> Observations:
        return cls(rows.points, rows.loss, rows.run, source, counts, rows.notes, rows.finished)
