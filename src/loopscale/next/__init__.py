"""Which runs to train next, so that a plan becomes more certain."""

from loopscale import make_callable
from loopscale.next.candidates import Goal, RunCandidates, Target, ladder_candidates, run_candidates
from loopscale.next.choose import NextRuns, PlannedRun, next_runs, pairs_needed

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

make_callable(__name__, next_runs)
