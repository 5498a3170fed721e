"""Which process a worker is, and whether it still runs."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """A process."""

    machine: str
    pid: int
    started_at: str
    """When the process was started, in seconds since the machine was: a pid alone is used again."""

    @classmethod
    def this(cls) -> Owner:
        """Return the current process."""
        return cls(machine(), os.getpid(), started_at(os.getpid()) or "")

    def is_here(self) -> bool:
        """Tell whether the process runs on this machine, where it can be looked up."""
        return self.machine == machine()

    def lives(self) -> bool:
        """Tell whether the process of this machine still runs."""
        return started_at(self.pid) == self.started_at


@cache
def machine() -> str:
    """Return a name for this machine since it was booted."""
    import psutil

    boot = Path("/proc/sys/kernel/random/boot_id")
    session = boot.read_text().strip()[:8] if boot.is_file() else f"{psutil.boot_time():.0f}"
    return f"{platform.node()}/{session}"


def started_at(pid: int) -> str | None:
    """Return when a process was started, or None when there is none; a zombie is none."""
    import psutil

    try:
        process = psutil.Process(pid)
        # The difference does not change when the system clock is set.
        age = process.create_time() - psutil.boot_time()
        return None if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else f"{age:.1f}"
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return ""
