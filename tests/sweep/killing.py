"""Killing workers at random while a sweep runs, and what must hold afterwards."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from loopscale.cli import main as loopscale
from loopscale.sweep.store import Store, run_folder
from loopscale.sweep.trunk import Trunk


def start(path: Path, *options: str, group: bool = False) -> subprocess.Popen:
    """Start ``loopscale sweep run`` as a person does; with ``group``, in a process group of its own."""
    command = [sys.executable, "-m", "loopscale", "sweep", "run", str(path), "--quiet", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=group)


def workers(folder: Path) -> list[int]:
    """Return the processes that work on a run now."""
    if not (folder / "sweep.sqlite").is_file():
        return []
    with Store(folder) as store:
        return [int(run.worker.rpartition(":")[2]) for run in store.runs() if run.worker and not run.stale]


def finish(path: Path) -> None:
    """Run what is left of a sweep, from this process."""
    with pytest.raises(SystemExit) as stop:
        loopscale(["sweep", "run", str(path), "--quiet"])
    assert stop.value.code == 0


def until(holds: Callable[[], object], longest: float = 3600) -> None:
    """Wait for something to hold."""
    deadline = time.monotonic() + longest
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill_some(folder: Path, main: subprocess.Popen, count: int) -> int:
    """Kill workers with signal 9, each at a random moment; return how many were."""
    draw, killed = random.Random(1), 0
    while killed < count and main.poll() is None:
        time.sleep(draw.uniform(0, 0.2))
        found = workers(folder)
        if found:
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(draw.choice(found), signal.SIGKILL)
                killed += 1
    return killed


def assert_nothing_lost_or_doubled(sweep, tmp_path: Path) -> None:
    """Check every point to be there once, each with the loss of a sweep that nobody disturbed."""
    wanted = {(run.key, tokens) for run in sweep.runs for tokens in run.points}
    with Store(sweep.results) as store:
        assert {run.state for run in store.runs()} == {"done"}
        losses = {(key, tokens): loss for key, tokens, loss, _ in store.observations()}
        events = Counter((key, what) for _, key, what, _ in store.events())
    assert set(losses) == wanted
    assert all(events[key, f"observed {tokens}"] == 1 for key, tokens in wanted)
    assert all(events[run.key, "finished"] == 1 for run in sweep.runs)
    quiet = {}
    for run in sweep.runs:
        trunk = Trunk(run.config, run.points, run_folder(tmp_path / "quiet", run.key), keep_models=False)
        trunk.run((), lambda tokens, loss, _, key=run.key: quiet.update({(key, tokens): loss}), lambda: False)
    assert losses == quiet
