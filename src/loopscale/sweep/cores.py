"""The cores of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from loopscale.errors import InputError


def usable_cores() -> list[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def check_cores(cores: Sequence[int]) -> None:
    """Refuse cores that this process may not use."""
    usable = usable_cores()
    for core in cores:
        if core not in usable:
            raise InputError(f"--cores: core {core} is not one of {', '.join(map(str, usable))}")
