"""What a backend is: how its workers are started and watched, and its own settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from loopscale.sweep.spec import Sweep
    from loopscale.sweep.store import Assignment, Resources


class Worker(Protocol):
    """A worker that was started."""

    def alive(self) -> bool:
        """Tell whether it still works."""

    def succeeded(self) -> bool:
        """Tell whether an ended worker ended normally."""

    def problem(self) -> str | None:
        """Return the sentence of an ended worker about what stops every other worker too, or None."""

    def kill(self) -> None:
        """End it now."""


class Launcher(Protocol):
    """A backend."""

    def start(self, assignment: Assignment) -> Worker | None:
        """Start a worker; return None while there is no room for what its runs need."""

    def wait(self, seconds: float) -> None:
        """Wait so long, or less where the backend learns at once that a worker has ended."""

    def close(self) -> None:
        """Release what the backend holds."""


@dataclass(frozen=True)
class Setting:
    """A setting of one backend, which is an option of ``sweep run``."""

    help: str
    metavar: str = "TEXT"
    read: Callable[[str], Any] = str
    """Returns the value of the option's text, or raises an InputError."""
    repeated: bool = False
    """The option may be given several times; its value is then a tuple."""


class Backend:
    """A place where workers run; its name is that of its file. It is made before anything else is done.

    The command ``sweep`` imports the files of all backends, so what loads torch is imported inside functions.
    """

    summary: ClassVar[str]
    """A few words for the help of ``--on``."""
    settings: ClassVar[Mapping[str, Setting]] = {}
    """The settings that only this backend has, by name."""
    detaches: ClassVar[bool] = False
    """Whether workers continue when the command ends, which ``--detach`` needs."""

    def __init__(self, workers: int | None = None, processes: int | None = None, **settings: Any) -> None:
        """Take the number of workers at once, the processes of a run on each node, and values of ``settings``."""
        self.workers, self.processes, self.values = workers, processes, settings

    def launcher(self, sweep: Sweep) -> tuple[Launcher, int]:
        """Return what starts workers for a sweep, and the number of workers at once."""
        raise NotImplementedError

    def needs(self, sweep: Sweep) -> set[Resources]:
        """Return the different resources that the runs of a sweep need."""
        return {replace(run.resources, gpus=self.processes or run.resources.gpus) for run in sweep.runs}
