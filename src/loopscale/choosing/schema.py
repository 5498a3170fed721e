"""The file of the runs to train next: what ``NextRuns.save`` writes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from loopscale.choosing.runs import KIND, SCHEMA, NextRuns
from loopscale.core.records import file_of

NotNegative = Annotated[float, Field(ge=0)]

NextRunsFile = file_of(
    NextRuns,
    KIND,
    SCHEMA,
    overrides={
        "budget": Annotated[float, Field(gt=0)],
        "before": NotNegative,
        "after": NotNegative,
        "candidates": Annotated[int, Field(ge=0)],
        "laws": Annotated[int, Field(ge=1)],
    },
    flops=(float | None, Field(None, description="FLOPs of all runs together.")),
    unspent=(float | None, Field(None, description="FLOPs of the budget that no run uses.")),
    below_noise=(
        bool | None,
        Field(None, description="Whether the expected gain is below the noise of a single run."),
    ),
)
