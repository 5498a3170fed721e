"""Workers as processes of this machine, each with its own GPUs or CPU cores.

On CPUs a process has one thread. For small models that beats one process with several threads, which wait for each
other more than they compute.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from loopscale.core.errors import InputError, LoopscaleError, StorageError
from loopscale.core.quantities import counted
from loopscale.sweep.backends.backend import Backend, Setting
from loopscale.sweep.store import Assignment, Resources

if TYPE_CHECKING:
    from loopscale.sweep.spec import Sweep

T = TypeVar("T")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def usable_cores() -> list[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def read_cores(text: str) -> tuple[int, ...]:
    """Read a list of cores; those that this process may not use are refused."""
    try:
        cores = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} is not a list of cores", remedy="write it like 0 or 0,1") from None
    usable = usable_cores()
    for core in cores:
        if core not in usable:
            raise InputError(f"core {core} is not one of {', '.join(map(str, usable))}; choose from these")
    return cores


def open_forkserver() -> ForkServerContext:
    """Start the process that local workers are forked from; it loads torch while this one continues."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["loopscale.sweep.worker"])
    with _one_thread():
        forkserver.ensure_running()
    return context


def call(function: Callable[..., T], *arguments: Any) -> T:
    """Return what a function gives in a process that has loaded torch; this one then never needs to."""
    context = open_forkserver()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(function, arguments, sender))
    process.start()
    sender.close()
    try:
        result, error = receiver.recv()
    except EOFError:
        process.join()
        if process.exitcode == 1:  # an unexpected error, whose traceback that process has printed
            raise SystemExit(1) from None
        raise StorageError(
            "the process that prepares the sweep was killed; is there enough memory? Run it again"
        ) from None
    except BaseException:
        process.terminate()
        raise
    finally:
        process.join()
    if error is not None:
        raise error
    return cast("T", result)


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...], answers: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent ends this one
    try:
        answers.send((function(*arguments), None))
    except LoopscaleError as error:
        answers.send((None, error))


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that are started in the block compute with one thread; libraries read this when they load."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class LocalWorker:
    """A process, and the devices that it holds."""

    def __init__(self, process: ForkServerProcess, messages: Connection, devices: tuple[int, ...]) -> None:
        self._process, self._messages, self.devices = process, messages, devices

    @property
    def sentinel(self) -> int:
        """A handle that becomes readable when the process ends."""
        return self._process.sentinel

    def alive(self) -> bool:
        """Tell whether it runs."""
        return self._process.is_alive()

    def succeeded(self) -> bool:
        """Tell whether it ended normally."""
        return self._process.exitcode == 0

    def problem(self) -> str | None:
        """Return what the worker said about a problem of all workers."""
        try:
            return str(self._messages.recv()) if self._messages.poll() else None
        except EOFError:
            return None

    def kill(self) -> None:
        """End it now; the processes that it started end with it."""
        self._process.kill()


class Local:
    """Processes forked from one that has loaded torch already, so that a new worker starts at once."""

    def __init__(self, cores: Sequence[int] | None, workers: int | None, needs: Collection[Resources]) -> None:
        self.gpus = call(_gpu_count)
        self.devices = list(range(self.gpus)) if self.gpus else list(cores or usable_cores())
        largest = max((need.gpus for need in needs), default=1)
        self._check(needs, largest)
        self.workers = max(1, len(self.devices) // min(need.gpus for need in needs)) if needs else len(self.devices)
        # More workers than cores is allowed where it is asked for; two processes on one GPU never are.
        self._share = not self.gpus and workers is not None and workers * largest > len(self.devices)
        self._context = open_forkserver()
        self._started: list[LocalWorker] = []

    def _check(self, needs: Collection[Resources], largest: int) -> None:
        usable = counted(len(self.devices), "GPU" if self.gpus else "core")
        if largest > len(self.devices):
            raise InputError(
                f"--on local: a run needs {largest} processes, and {usable} can be used here; "
                "give a smaller number with --processes, or use --on ray or --on slurm"
            )
        if any(need.nodes > 1 for need in needs):
            raise InputError("--on local: a run needs several nodes ([resources] nodes); use --on ray or --on slurm")

    def start(self, assignment: Assignment) -> LocalWorker | None:
        """Start a worker on devices that no other worker uses; None while there are too few."""
        devices = self._free(assignment.processes_per_node)
        if devices is None:
            return None
        placed = replace(assignment, gpus=devices) if self.gpus else replace(assignment, cores=devices)
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_main, args=(placed, sender), daemon=False)
        process.start()
        sender.close()
        worker = LocalWorker(process, receiver, devices)
        self._started.append(worker)
        return worker

    def _free(self, count: int) -> tuple[int, ...] | None:
        self._started = [worker for worker in self._started if worker.alive()]
        used = [device for worker in self._started for device in worker.devices]
        ordered = sorted(self.devices, key=lambda device: (used.count(device), self.devices.index(device)))
        free = [device for device in ordered if device not in used or self._share]
        return tuple(free[:count]) if len(free) >= count else None

    def wait(self, seconds: float) -> None:
        """Wait until a worker ends, but no longer than this."""
        ended = wait([worker.sentinel for worker in self._started], timeout=seconds)
        self._started = [worker for worker in self._started if worker.sentinel not in ended]

    def close(self) -> None:
        """Do nothing: the process that workers are forked from ends with this one."""


class LocalBackend(Backend):
    """Processes of this machine."""

    summary = "processes of this machine"
    settings: ClassVar[Mapping[str, Setting]] = {
        "cores": Setting("Cores to use.  [default: all]", "CORE,…", read_cores)
    }

    def launcher(self, sweep: Sweep) -> tuple[Local, int]:
        local = Local(self.values.get("cores"), self.workers, self.needs(sweep))
        return local, self.workers or local.workers


def _main(assignment: Assignment, messages: Connection) -> None:
    # Ctrl-C reaches every process of the terminal; the supervisor asks workers to stop, after a checkpoint.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    from loopscale.sweep.worker import work  # loads torch

    problem = work(assignment, parent.is_alive)
    if problem is not None:
        messages.send(problem)
        sys.exit(2)
