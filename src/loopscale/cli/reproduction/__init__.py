"""The paper's numbers and claims beside ours: one line for each, with the criterion that gives its status."""

from __future__ import annotations

from collections import Counter

from loopscale.cli.reproduction.claims import claims, findings, reduced_forms
from loopscale.cli.reproduction.line import MEANINGS, Line
from loopscale.cli.reproduction.printed import benchmarks, downstream, ladder, path_diversity, settings
from loopscale.cli.reproduction.public import PublicComparison, public_comparisons
from loopscale.cli.reproduction.simulated import coefficients, held_out, intervals, joint_optima

__all__ = ["MEANINGS", "Line", "PublicComparison", "public_comparisons", "reproduction", "summary"]

SECTIONS = (
    ladder, settings, coefficients, intervals, joint_optima, held_out, reduced_forms, findings, claims, benchmarks,
    downstream, path_diversity,
)  # fmt: skip


def reproduction() -> list[Line]:
    """Return every number and claim of the paper that we recompute, or cannot, with ours."""
    return [line for section in SECTIONS for line in section()]


def summary(lines: list[Line]) -> str:
    """Return the count of each status in a sentence."""
    counts = Counter(line.status for line in lines)
    parts = ", ".join(f"{counts[status]} {status}" for status in MEANINGS if counts[status])
    return f"{len(lines)} numbers and claims of the paper: {parts}"
