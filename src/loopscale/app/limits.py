"""What one client may ask for, so that others are still served."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes, times in seconds."""

    upload: int = 4_000_000
    """The largest request: a sweep or a law file."""
    upload_seconds: float = 20.0
    """The longest that a client may take to send its request."""
    rows: int = 20_000
    """The most rows of a sweep."""
    evaluations: int = 4_000_000
    """Candidates times laws of one plan."""
    threads: int = 4
    """Answers that compute at the same time; more would only wait for one another, and hold memory."""
    resamples: int = 2_000
    """Resampled laws that one law may carry."""
    job_seconds: float = 300.0
    """The longest that a fit, a comparison or a choice of runs may compute."""
    workers: int = 2
    """Jobs that compute at the same time."""
    waiting: int = 16
    """Jobs that may wait for their turn."""
    jobs: int = 64
    """Finished jobs that are remembered, the latest ones."""
    laws: int = 64
    """Laws of clients that are remembered."""
