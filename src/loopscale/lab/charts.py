"""Scores as text: bars for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from loopscale.lab.scores import Scores

SHOWN = (1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24)
"""Test-time R that a chart has a bar for."""
WIDTH = 46
EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, width: int = WIDTH) -> str:
    """Return a bar of so much of a width."""
    full, eighth = divmod(round(max(0.0, min(1.0, share)) * width * 8), 8)
    return ("█" * full + EIGHTHS[eighth].strip()).ljust(width)


def by_recurrence(scores: Scores) -> list[str]:
    """Return a line for each test-time R: the share of problems that are right, as a bar and as a number."""
    return [f"  R = {R:<3d}{bar(scores.at(R))} {scores.at(R):.2f}" for R in SHOWN if scores.most >= R]


def by_position(scores: Scores, recurrences: Sequence[int]) -> list[str]:
    """Return a line for each of some test-time R: the percentage that is right at every position, of at most 16."""
    count = scores.right_RA.shape[1]
    places = range(count) if count <= 16 else [round(index * (count - 1) / 15) for index in range(16)]
    lines = ["  position  " + " ".join(f"{place + 1:>3d}" for place in places)]
    for R in recurrences:
        if scores.most >= R:
            shares = " ".join(f"{100 * scores.right_RA[R - 1, place]:>3.0f}" for place in places)
            lines.append(f"  R = {R:<4d}% {shares}")
    return lines


def measured(scores: Scores) -> str:
    """Return what a score is the share of."""
    which = "last answer right" if scores.task.scored == "last" else "all answers right"
    return f"{scores.task.name}, {scores.task.difficulty:,} {scores.task.counts}: {which} by test-time R"
