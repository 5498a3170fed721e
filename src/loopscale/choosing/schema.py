"""The file of the runs to train next: what ``NextRuns.save`` writes."""

from __future__ import annotations

from pydantic import Field

from loopscale.choosing.candidates import Goal
from loopscale.choosing.runs import KIND, SCHEMA, PlannedRun
from loopscale.core.schemas import File
from loopscale.fitting import Noise


class NextRunsFile(File):
    """Runs to train next, as ``loopscale next --json`` prints them and ``NextRuns.save`` writes them."""

    KIND, VERSION = KIND, SCHEMA

    runs: list[PlannedRun]
    goal: Goal
    """What the runs should make certain."""
    budget: float = Field(gt=0)
    """FLOPs."""
    flops: float | None = None
    """Of all runs together."""
    unspent: float | None = None
    """FLOPs of the budget that no run uses."""
    below_noise: bool | None = None
    """Whether the expected gain is below the noise of a single run."""
    before: float = Field(ge=0)
    """Standard error at the target now, in nats."""
    after: float = Field(ge=0)
    """The same once all runs are trained."""
    noise: Noise
    """Standard deviations of ln loss."""
    candidates: int = Field(ge=0)
    """How many runs were weighed."""
    laws: int = Field(ge=1)
    """How many laws the choice was averaged over."""
    growth: float | None = None
    """Error of the law's form in ln loss that was assumed, per root decade of compute beyond the data."""
    law_before: float | None = None
    """Standard error at the target now, of the coefficients alone."""
    law_after: float | None = None
    """The same once all runs are trained."""
