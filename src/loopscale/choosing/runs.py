"""The chosen runs, what they should bring, and the file that holds them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from textwrap import wrap
from typing import Any, ClassVar

import numpy as np

from loopscale.choosing.candidates import Goal
from loopscale.core.files import read_json, write_json
from loopscale.core.quantities import counted, format_count
from loopscale.core.tables import Table
from loopscale.core.text import WIDTH, text_table
from loopscale.fitting import Noise

KIND, SCHEMA = "next-runs", 1
SHOWN = 12
"""Runs that a summary lists."""


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
    """What the runs should make certain."""
    budget: float
    """FLOPs."""
    before: float
    """Standard error at the target now, in nats: the root of the mean variance."""
    after: float
    """The same once all runs are trained."""
    noise: Noise
    """Standard deviations of ln loss."""
    candidates: int
    """Runs to choose from."""
    laws: int
    """How many laws the choice was averaged over."""
    growth: float | None = None
    """Error of the law's form in ln loss that was assumed, per root decade of compute beyond the data."""
    law_before: float | None = None
    """Standard error now if the form were right: the part of the coefficients alone."""
    law_after: float | None = None
    """The same once all runs are trained."""

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
        return bool(self.before - self.after < np.sqrt(self.noise.new_run_variance))

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
            "growth": self.growth,
            "law_before": self.law_before,
            "law_after": self.law_after,
            "noise": asdict(self.noise),
            "candidates": self.candidates,
            "laws": self.laws,
            "runs": [asdict(run) for run in self.runs],
        }

    def save(self, path: str | Path) -> None:
        """Write the choice as JSON, for ``load`` and for a sweep file's ``next_runs``."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> NextRuns:
        """Read a choice that ``save`` wrote."""
        return cls.from_dict(read_json(path), str(path))

    @classmethod
    def from_dict(cls, data: object, where: str = "next runs") -> NextRuns:
        """Read a choice from the content of its file; ``where`` names its origin in errors."""
        from loopscale.choosing.schema import NextRunsFile  # pydantic takes a moment to import
        from loopscale.core.schemas import parse

        file = parse(NextRunsFile, data, where)
        return cls(**{field.name: getattr(file, field.name) for field in fields(cls)})

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return (
            f"<NextRuns: {counted(len(self.runs), 'run')} for {format_count(self.flops)} FLOPs, standard error "
            f"{self.before:.4f} to {self.after:.4f}>"
        )

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def summary(self, verbose: bool = False) -> str:
        """Return whether the runs are worth their compute, the runs as a table, and what they should bring.

        The first runs are shown; ``verbose`` shows all.
        """
        runs, noise = counted(len(self.runs), "run"), float(np.sqrt(self.noise.new_run_variance))
        gain = f"expected error {self.before:#.2g} → {self.after:#.2g} nats"
        if not self.runs:
            return f"No candidate within the budget lowers the expected error, {self.before:.2g} nats."
        if self.below_noise:
            answer = f"Not worth it: {runs} take {gain}, a gain below the noise of one run ({noise:.2g})."
        else:
            answer = f"Train {runs} for {format_count(self.flops)} FLOPs: {gain}."
        what = "loss differences to the rivals" if self.goal is Goal.CHOICE else "predictions at the target"
        shown = self.runs if verbose else self.runs[:SHOWN]
        rows = [
            (
                str(order), run.model, format_count(run.active), f"{run.experts:g}", str(run.recurrence),
                format_count(run.tokens), format_count(run.flops), format_count(run.cumulative_flops),
                f"{run.standard_error:#.2g}",
            )
            for order, run in enumerate(shown, 1)
        ]  # fmt: skip
        columns = ("run", "model", "N", "E", "R", "tokens", "FLOPs", "so far", "error")
        lines = [*wrap(answer, WIDTH), "", text_table(columns, rows, left=("model",))]
        if len(shown) < len(self.runs):
            lines.append(f"{len(self.runs) - len(shown)} more with --verbose or --csv")
        budget = f"{format_count(self.flops)} of {format_count(self.budget)} FLOPs"
        lines += ["", *wrap(f"error: expected error of the {what} once the law is fitted again, in nats"
                            f"{self._parts()}.", WIDTH),
                  f"N: active parameters. Budget: {budget}, {format_count(self.unspent)} unspent."]  # fmt: skip
        return "\n".join(lines)

    def _parts(self) -> str:
        """Say what the error would be if the law's form were right."""
        if self.law_before is None or self.law_after is None or not self.growth:
            return ""
        return f"; {self.law_before:#.2g} → {self.law_after:#.2g} if its form is exactly right"
