"""Runs of two processes each, whose workers, ranks and supervisors are killed: no observation is lost or doubled."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from killing import start, until, workers

from loopscale.core.errors import InputError, StorageError
from loopscale.sweep.backends import Worker
from loopscale.sweep.backends.local import Local, call
from loopscale.sweep.spec import read_sweep
from loopscale.sweep.store import Assignment, Resources, Store
from sweeps import BASE, open_sweep, write_sweep

GRID = "[grid]\nrecurrence = [1, 2]\nseed = [{seeds}]\ntokens = [320, 640]\n[resources]\ngpus = 2\n"
MOST_FRUITLESS = 4
"""Kills in a row without any progress of the sweep between them."""
LOCAL = ("--workers", "1")
RAY = ("--on", "ray", "--workers", "1")
SUBMITIT = ("--on", "slurm", "--workers", "1", "--slurm", "cluster=local")


def processes_to_kill(folder: Path, kind: str, main: psutil.Popen) -> list[int]:
    """Return the living processes of a kind while runs are being trained: kills before that would show nothing."""
    held = workers(folder)
    if kind == "supervisor":
        return [main.pid] if held and main.poll() is None else []
    if kind == "worker":
        return held
    with suppress(psutil.NoSuchProcess):
        return [child.pid for pid in held for child in psutil.Process(pid).children()]
    return []


def progress_of(folder: Path) -> int:
    """Return the steps that are done and the points that are recorded, added up."""
    if not (folder / "sweep.sqlite").is_file():
        return 0
    with Store(folder) as store:
        return sum(run.steps_done + len(run.done) for run in store.runs())


def disturb(path: Path, kills: dict[str, int], options: tuple[str, ...], seed: int = 0) -> Counter:
    """Run a sweep to its end while its processes are killed at random moments; return how many of each kind were."""
    folder, draw, killed = read_sweep(path).results, random.Random(seed), Counter()
    main, fruitless, furthest, ended = start(path, *options), 0, 0, []
    while True:
        time.sleep(draw.uniform(0, 0.5))
        # On a slow machine every process could be killed before its first checkpoint, for ever.
        fruitless, furthest = (0 if progress_of(folder) > furthest else fruitless), max(furthest, progress_of(folder))
        left = [kind for kind, count in kills.items() if killed[kind] < count and fruitless < MOST_FRUITLESS]
        if main.poll() == -signal.SIGKILL:
            ended.append(main)  # its pipes stay open: jobs that outlive it have inherited them
            main = start(path, *options)
        elif main.poll() is not None:
            out, err = main.communicate()
            if main.returncode == 0:
                return killed
            # A busy machine may be too slow to start a Ray cluster in the time that Ray allows.
            assert "no cluster could be started" in err, err + out
            main = start(path, *options)
        if left:
            kind = draw.choice(left)
            targets = processes_to_kill(folder, kind, main)
            with suppress(ProcessLookupError, IndexError):
                os.kill(draw.choice(targets), signal.SIGKILL)
                killed[kind] += 1
                fruitless += 1


def losses(folder: Path) -> dict[tuple[str, int], float]:
    """Return the loss of every observation, and check that each was recorded once."""
    with Store(folder) as store:
        events = Counter((key, what) for _, key, what, _ in store.events())
        recorded = {(key, tokens): loss for key, tokens, loss, _ in store.observations()}
    assert all(events[key, f"observed {tokens}"] == 1 for key, tokens in recorded)
    return recorded


def check(tmp_path: Path, seeds: int, kills: dict[str, int], options: tuple[str, ...]) -> None:
    """Leave one sweep alone, disturb others until all kills were done, and compare their losses bit for bit."""
    grid = GRID.format(seeds=", ".join(map(str, range(seeds))))
    quiet = write_sweep(tmp_path / "quiet", grid)
    assert not disturb(quiet, {}, LOCAL)
    wanted = losses(read_sweep(quiet).results)
    assert set(wanted) == {(run.key, tokens) for run in read_sweep(quiet).runs for tokens in run.points}
    left = Counter(kills)
    while left:  # on a slow machine a sweep may end before all kills were done
        disturbed = write_sweep(tmp_path / f"disturbed-{left.total()}", grid)
        killed = disturb(disturbed, left, options, seed=left.total())
        assert killed
        assert losses(read_sweep(disturbed).results) == wanted
        left -= killed


def test_local_runs_of_two_processes_survive_kills(tmp_path):
    check(tmp_path, 1, {"worker": 1, "rank": 2, "supervisor": 1}, LOCAL)


@pytest.mark.slow
@pytest.mark.parametrize("options", [LOCAL, RAY, SUBMITIT], ids=["local", "ray", "submitit"])
def test_twelve_runs_of_two_processes_survive_twenty_kills_of_each_kind(tmp_path, options):
    check(tmp_path, 6, {"worker": 20, "rank": 20, "supervisor": 20}, options)


def test_a_run_comes_back_with_another_number_of_processes(tmp_path):
    """A run of two processes is stopped and finished by one: its checkpoints reshard."""
    path = write_sweep(tmp_path, GRID.format(seeds="0"))
    folder = read_sweep(path).results
    main = start(path, *LOCAL)
    until(lambda: list(folder.glob("runs/*/checkpoints/step-*")) or main.poll() is not None)
    main.send_signal(signal.SIGINT)
    assert main.communicate() is not None
    with Store(folder) as store:
        assert {run.state for run in store.runs()} <= {"waiting", "done"}
    main = start(path, *LOCAL, "--processes", "1")
    out, err = main.communicate()
    assert (main.returncode, "2/2 runs, 4/4 observations" in out) == (0, True), err


def test_an_interrupt_of_the_terminal_stops_the_processes_of_a_run_at_a_checkpoint(tmp_path):
    """Ctrl-C reaches every process of the terminal: supervisor, worker and ranks."""
    path = write_sweep(tmp_path, GRID.format(seeds="0").replace("640", "64000"))
    folder = read_sweep(path).results
    main = start(path, *LOCAL, group=True)
    until(lambda: list(folder.glob("runs/*/checkpoints/step-*")) or main.poll() is not None)
    os.killpg(main.pid, signal.SIGINT)
    _, err = main.communicate()
    assert "Traceback" not in err
    with Store(folder) as store:
        events = Counter(what for _, _, what, _ in store.events())
        assert {run.state for run in store.runs()} == {"waiting"}
    assert (events["released"], events["crashed"]) == (1, 0)


def _ended(tmp_path) -> tuple[Local, Worker]:
    """Return a backend and a worker that finds no run to claim, so that it ends."""
    path = write_sweep(tmp_path, "[grid]\ntokens = 64\n")
    sweep, store = open_sweep(path)
    with store:
        local = Local(None, 1, {Resources()})
        worker = local.start(Assignment(str(sweep.root), sweep.folder, "session", False, only=()))
    assert worker is not None
    return local, worker


def test_the_end_of_a_worker_wakes_the_supervisor(tmp_path):
    local, worker = _ended(tmp_path)
    local.wait(86400)
    assert (worker.alive(), worker.succeeded()) == (False, True)


def test_an_ended_worker_does_not_wake_the_supervisor_again(tmp_path, monkeypatch):
    local, _ = _ended(tmp_path)
    local.wait(86400)
    watched = []
    monkeypatch.setattr("loopscale.sweep.backends.local.wait", lambda handles, timeout: watched.append(handles) or [])
    local.wait(1)
    assert watched == [[]]


def test_loading_a_worker_leaves_garbage_collection_as_it_was():
    code = "import gc; gc.disable(); import loopscale.sweep.worker; print(gc.isenabled())"
    for text, left in ((code, "False"), (code.replace("gc.disable(); ", ""), "True")):
        assert (
            subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.strip()
            == left
        )


@pytest.mark.slow
def test_a_run_on_two_nodes_of_a_ray_cluster(tmp_path):
    """Two bundles of a placement group stand for two nodes, each with one process of the run."""
    path = write_sweep(tmp_path, GRID.format(seeds="0").replace("gpus = 2", "nodes = 2"))
    main = start(path, *RAY)
    out, err = main.communicate()
    assert (main.returncode, "2/2 runs, 4/4 observations" in out) == (0, True), err


def test_resources_are_read_per_size_and_checked(tmp_path):
    sizes = "[sizes.small]\nwidth = 16\n[sizes.large]\nwidth = 32\n[grid]\ntokens = 64\n"
    needs = "[resources]\ngpus = 1\n[resources.large]\ngpus = 2\nnodes = 1\n"
    runs = read_sweep(write_sweep(tmp_path, sizes + needs)).runs
    assert [run.resources for run in runs] == [Resources(1, 1), Resources(2, 1)]
    for body, said in (
        (needs.replace("nodes = 1", "nods = 1"), "[resources.large]: unknown field 'nods'"),
        (needs.replace("gpus = 2", "gpus = 0"), "should be 1 or more"),
        (needs.replace(".large", ".lrage"), "[resources.lrage] names the size 'lrage'"),
        (needs + '[[overrides]]\nwhen = { size = "smal" }\nset = { "run.batch" = 4 }\n', "(did you mean 'small'?)"),
        (needs.replace("gpus = 2", "gpus = 3"), "3 processes ([resources]) cannot share a batch of 2 equally"),
    ):
        with pytest.raises(InputError) as error:
            read_sweep(write_sweep(tmp_path, sizes + body))
        assert said in str(error.value)


def test_more_processes_than_the_machine_has_are_refused(tmp_path):
    path = write_sweep(
        tmp_path, "[grid]\ntokens = 4096\n[resources]\ngpus = 64\n", base=BASE.replace("= 2\n", "= 64\n")
    )
    main = start(path)
    _, err = main.communicate()
    assert (main.returncode, err.count("\n")) == (2, 1)
    assert "a run needs 64 processes" in err


def _refuse() -> None:
    raise InputError("one sentence")


def _end_by_signal() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_preparation_that_fails_is_one_sentence_in_the_command():
    assert call(len, "four") == 4
    with pytest.raises(InputError, match=r"^one sentence$"):
        call(_refuse)
    with pytest.raises(StorageError, match="was killed; is there enough memory"):
        call(_end_by_signal)
