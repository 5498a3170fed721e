"""Which runs to train next, so that a plan becomes more certain."""

from loopscale.choosing.candidates import (
    Goal,
    RunCandidates,
    Target,
    ladder_candidates,
    own_candidates,
    read_candidates,
    run_candidates,
)
from loopscale.choosing.choose import next_runs
from loopscale.choosing.runs import NextRuns, PlannedRun
from loopscale.choosing.seeds import pairs_needed

__all__ = [
    "Goal",
    "NextRuns",
    "PlannedRun",
    "RunCandidates",
    "Target",
    "ladder_candidates",
    "next_runs",
    "own_candidates",
    "pairs_needed",
    "read_candidates",
    "run_candidates",
]
