"""Who works on a run: a process of some machine, and whether it still lives."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LEASE = 60.0
"""Seconds without a sign of life after which a process of another machine is taken for dead."""


@dataclass(frozen=True)
class Owner:
    """A process."""

    machine: str
    pid: int
    begun: str
    """When the process began, as its system counts: a pid alone is used again."""

    @classmethod
    def this(cls) -> Owner:
        """Return the process that runs now."""
        return cls(machine(), os.getpid(), _begun(os.getpid()) or "")

    def lives(self, silence: float) -> bool:
        """Tell whether the process is at work: by looking, on its own machine; elsewhere by how long it is silent."""
        if self.machine != machine():
            return silence < LEASE
        return _begun(self.pid) == self.begun


@cache
def machine() -> str:
    """Return a name for this machine since it was started: its processes are the ones that can be looked up."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()}/{boot.read_text().strip()[:8] if boot.is_file() else ''}"


def _begun(pid: int) -> str | None:
    """Return when a process began, or None when there is none; one that only waits to be buried is none."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None if stat.parent.parent.joinpath("self").exists() else _known(pid)
    return None if fields[0] in "ZX" else fields[19]


def _known(pid: int) -> str | None:
    """Do the same on a system without /proc, which tells only that a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""
