"""Which runs to train next, so that a plan becomes more certain."""

from loopscale.choosing.candidates import Goal, RunCandidates, Target, ladder_candidates, run_candidates
from loopscale.choosing.choose import NextRuns, PlannedRun, next_runs, pairs_needed

__all__ = [
    "Goal",
    "NextRuns",
    "PlannedRun",
    "RunCandidates",
    "Target",
    "ladder_candidates",
    "next_runs",
    "pairs_needed",
    "run_candidates",
]
