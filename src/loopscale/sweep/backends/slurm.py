"""Workers as SLURM jobs, through submitit."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopscale.errors import InputError, nearest
from loopscale.sweep.worker import Job, work

MINUTES = 24 * 60
"""How long a job may take unless told; what it has not finished by then, another goes on with."""


class Task:
    """What a job does; one that is preempted or out of time is queued again and goes on from the store."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self) -> int:
        """Work."""
        return work(self.job)

    def checkpoint(self) -> Any:
        """Return what takes this job's place."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class SlurmWorker:
    """A job."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def alive(self) -> bool:
        """Tell whether it is queued or runs."""
        return not self._job.done()

    def well(self) -> bool:
        """Tell whether it ended by itself."""
        return self._job.exception() is None

    def kill(self) -> None:
        """End it now."""
        self._job.cancel(check=False)


class Slurm:
    """A cluster; logs go to the folder ``slurm`` of the results."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        try:
            from submitit import AutoExecutor
        except ImportError:
            raise InputError(
                "--on slurm: the package submitit is not installed; pip install 'loopscale[slurm]'"
            ) from None
        given: dict[str, Any] = {"timeout_min": MINUTES, "cpus_per_task": 1, "name": "loopscale", **settings}
        cluster = given.pop("cluster", "slurm")
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise InputError(
                "--on slurm: there is no sbatch on this machine; call this where jobs can be submitted, "
                "or try the same with --slurm cluster=local"
            )
        if cluster not in ("slurm", "local", "debug"):
            raise InputError(f"--slurm: cluster {cluster!r} is not one of slurm and local")
        self._executor = AutoExecutor(folder=folder / "slurm" / "%j", cluster=cluster)
        self._executor.update_parameters(**_parameters(given, self._executor))

    def start(self, job: Job, place: int) -> SlurmWorker:
        """Submit a job."""
        return SlurmWorker(self._executor.submit(Task(job)))

    def close(self) -> None:
        """Jobs live on by themselves."""


def read_settings(listed: tuple[str, ...]) -> dict[str, str]:
    """Read ``--slurm KEY=VALUE``."""
    found = {}
    for text in listed:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--slurm: {text!r} is not KEY=VALUE; write it like partition=gpu")
        found[name.strip()] = value.strip()
    return found


def _parameters(given: Mapping[str, Any], executor: Any) -> dict[str, Any]:
    """Return the settings as submitit spells them: those of SLURM alone have its name before them."""
    from submitit import SlurmExecutor

    shared, own = executor._typed_parameters(), SlurmExecutor._valid_parameters()
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in shared:
            found[name] = _number(value, shared[name], name)
        elif name in own:
            found[f"slurm_{name}"] = value
        else:
            known = sorted({*shared, *own, "cluster"})
            raise InputError(f"--slurm: unknown setting {name!r}{nearest(name, known)}; known are {', '.join(known)}")
    return found


def _number(value: Any, kind: Any, name: str) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise InputError(f"--slurm: {name} is {value!r}; it should be a number") from None
