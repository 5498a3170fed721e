"""A worker: claims runs one after another until none is left, on any backend."""

from __future__ import annotations

import gc

_COLLECTING = gc.isenabled()
gc.disable()  # collecting garbage takes a fifth of the time in which torch and Transformers load

# ruff: noqa: E402
import ctypes
import errno
import json
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import chdir, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch

from loopscale.core.errors import LoopscaleError, StorageError
from loopscale.sweep.store import Assignment, Claim, ClaimLost, Store, run_folder
from loopscale.sweep.trunk import Trunk
from loopscale.train.config import TrainConfig
from loopscale.train.run_dir import FolderInUse

if _COLLECTING:
    gc.enable()
gc.freeze()  # modules stay loaded: no collection looks at them, and forked workers share their memory

HEARTBEAT = 2.0
"""Seconds between two heartbeats of a worker."""
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)
POLL = 0.2
"""Seconds between two checks for work by a node that follows another."""
_ENDING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""Signals on which torchrun's agent ends the processes of a run, unless this process ignores them.

Local workers ignore Ctrl-C: the supervisor asks them to stop, after a checkpoint.
"""


def work(assignment: Assignment, parent_lives: Callable[[], bool] = lambda: True) -> str | None:
    """Claim and train until no run is left or the worker is asked to stop.

    Return None, or one sentence about a problem that every other worker would meet too, such as a full disk.
    """
    torch.set_num_threads(1)
    _bind(assignment.cores[:1] if assignment.resources.processes == 1 else assignment.cores, assignment.gpus)
    end = None if assignment.seconds is None else time.monotonic() + assignment.seconds

    def going() -> bool:
        return (end is None or time.monotonic() < end) and parent_lives()

    # Configs keep relative paths, so that a sweep that was moved is still the same sweep.
    try:
        with chdir(assignment.root):
            (_lead if assignment.node == 0 else _follow)(assignment, going)
    except LoopscaleError as error:
        return str(error)
    return None


def _lead(assignment: Assignment, going: Callable[[], bool]) -> None:
    """Claim runs and train each of them."""
    launches, in_use = 0, set[str]()
    try:
        while going():
            with Store(Path(assignment.folder)) as store:
                stopped = store.stop_requested(assignment.session)
                claim = None if stopped else store.claim(assignment.only, assignment.resources, but=in_use)
            if claim is None:
                return
            if assignment.resources.nodes * assignment.processes_per_node == 1:
                try:
                    _train_run(claim, assignment, going)
                except FolderInUse:
                    in_use.add(claim.key)  # for a later worker
                continue
            launches += 1
            _launch_run(claim, assignment, launches)
    finally:
        if assignment.resources.nodes > 1:
            with Store(Path(assignment.folder)) as store:
                store.set_fact(f"crew {assignment.crew}", json.dumps({"launch": launches + 1, "claim": None}))


def _bind(cores: tuple[int, ...], gpus: tuple[int, ...]) -> None:
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(cores))
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))


def _train_run(claim: Claim, assignment: Assignment, going: Callable[[], bool], crew_size: int = 1) -> None:
    """Train a run in this process, as the only one or as the first of several; store how it ended."""
    trunk: Trunk | None = None
    with Store(Path(assignment.folder)) as store:
        try:
            with _Heartbeat(claim, assignment) as heartbeat:
                trunk = _open_trunk(claim, assignment)
                heartbeat.progress = lambda: trunk.steps_done
                record = lambda tokens, loss, facts: store.record(claim, tokens, loss, facts)  # noqa: E731
                stop = _agreement(trunk, lambda: heartbeat.stop_requested() or not going())
                finished = trunk.run(claim.done, record, stop)
            (store.finish if finished else store.release)(claim)
        except ClaimLost:
            pass
        except FolderInUse:
            # A worker that was frozen for longer than a lease has lost the run, but still holds its folder until it
            # wakes up and notices.
            with suppress(ClaimLost):
                store.release(claim)
            raise
        except Exception as error:
            with suppress(ClaimLost):
                _store_failure(store, claim, error, crew_size)
        except BaseException:  # the worker is being ended, and its process may continue
            with suppress(ClaimLost):
                store.release(claim)
            raise
        finally:
            if trunk is not None and crew_size == 1:
                trunk.trainer.process.close()


def _store_failure(store: Store, claim: Claim, error: Exception, crew_size: int) -> None:
    """Store why a run stopped: a full disk stops every run, and a lost process counts as a crash, not as a failure."""
    if isinstance(error, StorageError) or _is_disk_error(error):
        with suppress(StorageError):
            store.release(claim)
        raise StorageError(f"run {claim.key}: {error}") from None
    if isinstance(error, LoopscaleError):
        store.fail(claim, str(error))
    elif crew_size > 1:
        store.crashed(claim, traceback.format_exc())
        raise error
    else:
        store.fail(claim, traceback.format_exc())


def _is_disk_error(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in _DISK:
        return True
    return any(os.strerror(code) in str(error) for code in _DISK)


def _open_trunk(claim: Claim, assignment: Assignment) -> Trunk:
    config = TrainConfig.from_dict(claim.config, f"run {claim.key}")
    folder = run_folder(Path(assignment.folder), claim.key)
    facts = {"run": claim.key, "size": claim.cell.get("size", "")}
    return Trunk(config, claim.points, folder, assignment.keep_models, assignment.objects, **facts)


def _agreement(trunk: Trunk, first: Callable[[], bool]) -> Callable[[], bool]:
    """Return a ``stop`` on which all processes of a run agree: the first one decides."""
    process = trunk.trainer.process
    if process.ranks == 1:
        return first

    def stop() -> bool:
        flag = torch.zeros(1)
        if process.rank == 0:
            try:
                flag += first()
            except ClaimLost:
                flag += 2
        decision = int(process.total(flag))
        if decision == 2:
            raise ClaimLost
        return decision == 1

    return stop


def _launch_run(claim: Claim, assignment: Assignment, launch: int) -> None:
    """Train a run on several processes, which torchrun's agent starts here and, with several nodes, on each of them."""
    host = socket.gethostname() if assignment.resources.nodes > 1 else "127.0.0.1"
    with socket.socket() as free:
        free.bind(("", 0))
        endpoint = f"{host}:{free.getsockname()[1]}"
    if assignment.resources.nodes > 1:
        message = {"launch": launch, "claim": asdict(claim) | {"done": sorted(claim.done)}, "endpoint": endpoint}
        with Store(Path(assignment.folder)) as store:
            store.set_fact(f"crew {assignment.crew}", json.dumps(message))
    problem = _torchrun(claim, assignment, endpoint)
    if problem is not None:
        print(f"run {claim.key}: {problem}; it resumes from its last checkpoint", file=sys.stderr)
        with Store(Path(assignment.folder)) as store, suppress(ClaimLost):
            store.crashed(claim, problem)


def _follow(assignment: Assignment, going: Callable[[], bool]) -> None:
    """Join the launches of the crew's first node until it says that there are no more."""
    last = 0
    while going():
        with Store(Path(assignment.folder)) as store:
            text = store.fact(f"crew {assignment.crew}")
        message: dict[str, Any] = json.loads(text) if text else {"launch": 0}
        if message["launch"] == last:
            time.sleep(POLL)
            continue
        last = message["launch"]
        if message["claim"] is None:
            return
        fields = message["claim"]
        points = {int(tokens): requested for tokens, requested in fields["points"].items()}
        claim = Claim(**{**fields, "points": points, "done": frozenset(fields["done"])})
        _torchrun(claim, assignment, message["endpoint"])


def _torchrun(claim: Claim, assignment: Assignment, endpoint: str) -> str | None:
    """Run this node's processes of a run to their end; return what went wrong, or None.

    A problem that every worker would meet, such as a full disk, is raised.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # It prints a traceback for each process that ends; the reason is reported in one sentence here.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    fork = sys.platform == "linux" and not torch.cuda.is_available()
    config = LaunchConfig(
        min_nodes=assignment.resources.nodes,
        max_nodes=assignment.resources.nodes,
        nproc_per_node=assignment.processes_per_node,
        run_id=claim.claim_id,
        rdzv_backend="static",
        rdzv_endpoint=endpoint,
        rdzv_configs={"rank": assignment.node, "timeout": 300},
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork" if fork else "spawn",
        signals_to_handle=",".join(
            name for name in _ENDING if signal.getsignal(signal.Signals[name]) != signal.SIG_IGN
        ),
    )
    try:
        elastic_launch(config, train_rank)(claim, assignment, os.getpid())
    except ChildFailedError as error:
        for failure in error.failures.values():
            kind, _, sentence = _message(failure).partition(": ")
            if kind == StorageError.__name__:
                raise StorageError(sentence) from None
        rank, first = error.get_first_failure()
        return f"process {rank} of the run ended: {_message(first)}"
    except (RuntimeError, OSError, SystemError) as error:  # the rendezvous failed, say because a node was lost
        return f"the run's processes could not be started: {error}"
    return None


def _message(failure: Any) -> str:
    """Return what ended a process: the error that it recorded, or the signal."""
    message = failure.message
    return str(message["message"] if isinstance(message, dict) else message)


def train_rank(claim: Claim, assignment: Assignment, parent: int) -> None:
    """Train a run as one of several processes; the agent that started them sets RANK and WORLD_SIZE."""
    _die_with(parent)
    torch.set_num_threads(1)
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if assignment.cores:
        _bind((assignment.cores[local % len(assignment.cores)],), ())

    def parent_lives() -> bool:
        return os.getppid() == parent

    if rank == 0:
        with suppress(FolderInUse):
            _train_run(claim, assignment, parent_lives, crew_size=2)
        return
    with suppress(ClaimLost, LoopscaleError):  # the first process stores what happened
        trunk = _open_trunk(claim, assignment)
        trunk.run(claim.done, lambda *_: None, _agreement(trunk, lambda: False))


def _die_with(parent: int) -> None:
    """End this process when its parent ends: nothing may write to a run's folder after its worker has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


class _Heartbeat:
    """A thread that counts heartbeats in the store, however long a step takes, and reads requests to stop."""

    def __init__(self, claim: Claim, assignment: Assignment) -> None:
        self._stop = self._lost = False
        self._problem: LoopscaleError | None = None
        self.progress: Callable[[], int] = lambda: 0
        self._claim, self._assignment, self._ended = claim, assignment, Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Store the progress a last time."""
        self._ended.set()
        self._thread.join()

    def stop_requested(self) -> bool:
        """Tell whether the session was asked to stop; raise if another worker has taken the run over."""
        if self._lost:
            raise ClaimLost(self._claim.key)
        if self._problem is not None:
            raise self._problem
        return self._stop

    def _run(self) -> None:
        last = time.monotonic()
        try:
            with Store(Path(self._assignment.folder)) as store:
                while True:
                    ended = self._ended.wait(HEARTBEAT)
                    now = time.monotonic()
                    self._lost = not store.heartbeat(self._claim, self.progress(), now - last)
                    self._stop = store.stop_requested(self._assignment.session)
                    last = now
                    if ended or self._lost:
                        return
        except LoopscaleError as error:
            self._problem = error
