"""Workers as SLURM jobs, through submitit."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from loopscale.core.errors import InputError, nearest, require
from loopscale.sweep.backends.backend import Backend, Setting
from loopscale.sweep.store import Assignment

if TYPE_CHECKING:
    from loopscale.sweep.spec import Sweep

MINUTES = 24 * 60
"""Time limit of a job unless one is given; another job resumes what it has not finished."""


class NodeWork:
    """What a job runs on each of its nodes; a preempted job is queued again and resumes through the store."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment

    def __call__(self) -> str | None:
        """Work; the first node claims the runs, the others follow it."""
        from loopscale.sweep.worker import work  # loads torch

        node = int(os.environ.get("SLURM_NODEID", "0")) if self.assignment.resources.nodes > 1 else 0
        return work(replace(self.assignment, node=node))

    def checkpoint(self) -> Any:
        """Return what replaces this job when it is preempted or out of time."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class SlurmWorker:
    """A job."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def alive(self) -> bool:
        """Tell whether it is queued or runs."""
        return not self._job.done()

    def succeeded(self) -> bool:
        """Tell whether it ended normally."""
        return self._job.exception() is None

    def problem(self) -> str | None:
        """Return what the worker said about a problem of all workers."""
        if not self.succeeded():
            return None
        sentence = self._job.result()
        return None if sentence is None else str(sentence)

    def kill(self) -> None:
        """End it now."""
        self._job.cancel(check=False)


class Slurm:
    """A cluster; logs go to the folder ``slurm`` of the results."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        submitit = require("submitit", extra="slurm", what="--on slurm")
        options: dict[str, Any] = {"timeout_min": MINUTES, "name": "loopscale", **settings}
        self._cluster = options.pop("cluster", "slurm")
        if self._cluster == "slurm" and shutil.which("sbatch") is None:
            raise InputError(
                "--on slurm: there is no sbatch on this machine; call this where jobs can be submitted, "
                "or try the same with --slurm cluster=local"
            )
        if self._cluster not in ("slurm", "local", "debug"):
            raise InputError(f"--slurm: cluster {self._cluster!r} is not one of slurm and local; use one of these")
        self._executor = submitit.AutoExecutor(folder=folder / "slurm" / "%j", cluster=self._cluster)
        self._options = _parameters(options, self._executor)
        self._executor.update_parameters(**self._options)

    def start(self, assignment: Assignment) -> SlurmWorker:
        """Submit a job with what its runs need: one task on each node, which starts the node's processes."""
        gpus, nodes = assignment.processes_per_node, assignment.resources.nodes
        if nodes > 1 and self._cluster != "slurm":
            raise InputError(f"--slurm cluster={self._cluster}: a run needs {nodes} nodes, and this is one machine")
        need: dict[str, Any] = {"nodes": nodes, "tasks_per_node": 1}
        if "cpus_per_task" not in self._options:
            need["cpus_per_task"] = gpus
        if self._cluster == "slurm" and gpus * nodes > 1 and "gpus_per_node" not in self._options:
            need["gpus_per_node"] = gpus
        if self._cluster == "slurm" and nodes > 1:
            # When a node's task is lost, the others must end too, so that the job can be replaced.
            need["slurm_srun_args"] = ["--kill-on-bad-exit=1"]
        self._executor.update_parameters(**need)
        return SlurmWorker(self._executor.submit(NodeWork(assignment)))

    def wait(self, seconds: float) -> None:
        """Wait so long."""
        time.sleep(seconds)

    def close(self) -> None:
        """Do nothing: jobs continue without this process."""


def read_setting(text: str) -> tuple[str, str]:
    """Read a setting of the jobs, ``KEY=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError(f"{text!r} is not KEY=VALUE", remedy="write it like partition=gpu")
    return name.strip(), value.strip()


class SlurmBackend(Backend):
    """Jobs of a SLURM cluster."""

    summary = "SLURM jobs"
    settings: ClassVar[Mapping[str, Setting]] = {
        "slurm": Setting("A setting of the jobs, like partition=gpu.", "KEY=VALUE", read_setting, repeated=True)
    }
    detaches = True

    def __init__(self, workers: int | None = None, processes: int | None = None, **settings: Any) -> None:
        super().__init__(workers, processes, **settings)
        if workers is None:
            raise InputError("--on slurm: give the number of jobs at once with `workers`")

    def launcher(self, sweep: Sweep) -> tuple[Slurm, int]:
        assert self.workers is not None
        return Slurm(sweep.results, dict(self.values.get("slurm", ()))), self.workers


def _parameters(options: Mapping[str, Any], executor: Any) -> dict[str, Any]:
    """Return the settings as submitit spells them: those that only SLURM has get the prefix ``slurm_``."""
    from submitit import SlurmExecutor

    shared, own = executor._typed_parameters(), SlurmExecutor._valid_parameters()
    spelled: dict[str, Any] = {}
    for name, value in options.items():
        if name in shared:
            spelled[name] = _number(value, shared[name], name)
        elif name in own:
            spelled[f"slurm_{name}"] = value
        else:
            known = sorted({*shared, *own, "cluster"})
            raise InputError(f"--slurm: unknown setting {name!r}{nearest(name, known)}; known are {', '.join(known)}")
    return spelled


def _number(value: Any, kind: Any, name: str) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise InputError(f"--slurm: {name} is {value!r}; it should be a number") from None
