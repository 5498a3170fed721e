"""What a launcher, such as torchrun, told this process: how many there are, and which one it is."""

from __future__ import annotations

import os


def launched() -> bool:
    """Tell whether a launcher started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launched_rank() -> int:
    """Return the rank of this process; 0 when it was started alone."""
    return int(os.environ["RANK"]) if launched() else 0


def launched_ranks() -> int:
    """Return the number of processes; 1 when this one was started alone."""
    return int(os.environ["WORLD_SIZE"]) if launched() else 1
