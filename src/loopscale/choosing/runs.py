"""The chosen runs, what they should bring, and the file that holds them."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from loopscale.choosing.candidates import Goal
from loopscale.core.files import read_json, write_json
from loopscale.core.quantities import counted, format_count
from loopscale.core.tables import Table
from loopscale.fitting import Noise

KIND, SCHEMA = "next-runs", 1


@dataclass(frozen=True)
class PlannedRun:
    """A run to train, in the order of choice."""

    model: str
    active: float
    experts: float
    recurrence: int
    tokens: float
    flops: float
    cumulative_flops: float
    standard_error: float
    """Expected at the target once this run and those before it are trained, in nats."""
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True, repr=False)
class NextRuns:
    """Runs to train next and what they should bring."""

    runs: tuple[PlannedRun, ...]
    goal: Goal
    budget: float
    before: float
    """Standard error at the target now, in nats: the root of the mean variance."""
    after: float
    noise: Noise
    candidates: int
    laws: int
    """How many laws the choice was averaged over."""

    @property
    def flops(self) -> float:
        """What all runs cost together."""
        return sum(run.flops for run in self.runs)

    @property
    def unspent(self) -> float:
        """FLOPs of the budget that no chosen run uses."""
        return self.budget - self.flops

    @property
    def below_noise(self) -> bool:
        """Whether the runs should reduce the standard error by less than the noise of a single run."""
        return bool(self.before - self.after < np.sqrt(self.noise.new_run))

    def table(self) -> Table:
        """Return one row for each run."""
        return Table.from_records([asdict(run) for run in self.runs])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the content of the file."""
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "goal": self.goal.value,
            "budget": self.budget,
            "flops": self.flops,
            "unspent": self.unspent,
            "below_noise": self.below_noise,
            "before": self.before,
            "after": self.after,
            "noise": asdict(self.noise),
            "candidates": self.candidates,
            "laws": self.laws,
            "runs": [asdict(run) for run in self.runs],
        }

    def save(self, path: str | Path) -> None:
        """Write the choice as JSON, for :meth:`load` and for a sweep file's ``next_runs``."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> NextRuns:
        """Read a choice that :meth:`save` wrote."""
        return cls.from_dict(read_json(path), str(path))

    @classmethod
    def from_dict(cls, data: object, where: str = "next runs") -> NextRuns:
        """Read a choice from the content of its file; ``where`` names its origin in errors."""
        from loopscale.choosing.schema import NextRunsFile  # pydantic takes a moment to import
        from loopscale.core.schemas import parse

        file = parse(NextRunsFile, data, where)
        return cls(
            tuple(file.runs), file.goal, file.budget, file.before, file.after, file.noise, file.candidates, file.laws
        )

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return (
            f"<NextRuns: {counted(len(self.runs), 'run')} for {format_count(self.flops)} FLOPs, standard error "
            f"{self.before:.4f} to {self.after:.4f}>"
        )

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def summary(self) -> str:
        """Return the runs as a table, and what they should bring, as plain text."""
        grid = RichTable("run", "model", "E", "R", "tokens", "FLOPs", "FLOPs so far", "standard error")
        for order, run in enumerate(self.runs, 1):
            counts = (format_count(count) for count in (run.tokens, run.flops, run.cumulative_flops))
            grid.add_row(
                str(order), run.model, f"{run.experts:g}", str(run.recurrence), *counts, f"{run.standard_error:.5f}"
            )
        out = io.StringIO()
        Console(file=out, width=120).print(grid)
        what = "loss differences to the rivals" if self.goal is Goal.CHOICE else "predictions at the target"
        return (
            f"{out.getvalue().rstrip()}\nStandard error of the {what}: {self.before:.5f} now, {self.after:.5f} after "
            f"{counted(len(self.runs), 'run')} for {format_count(self.flops)} of {format_count(self.budget)} FLOPs "
            f"({format_count(self.unspent)} unspent)."
            + (
                f"\nThe expected gain is below the noise of one run ({np.sqrt(self.noise.new_run):.4f} in ln loss): "
                "these runs may not change the plan."
                if self.below_noise
                else ""
            )
        )
