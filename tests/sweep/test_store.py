"""The store: one worker to a run, one observation to a point, whatever dies."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from multiprocessing import get_context

import psutil
import pytest

from loopscale.core.errors import StorageError
from loopscale.sweep import owner
from loopscale.sweep import store as store_module
from loopscale.sweep.database import FILE, journal
from loopscale.sweep.store import LEASE, MOST_CRASHES, ClaimLost, Store
from sweeps import open_sweep, write_sweep

GRID = "[grid]\nrecurrence = [1, 2, 3]\ntokens = [64, 128]\n"


@pytest.fixture
def store(tmp_path):
    """A store of three runs."""
    with open_sweep(write_sweep(tmp_path, GRID))[1] as store:
        yield store


def claim_all(folder, answers):
    with Store(folder) as store:
        while (claim := store.claim()) is not None:
            answers.put(claim.key)
        answers.put(None)
        signal.pause()  # the runs of an ended worker could be claimed again


def test_workers_that_claim_at_once_never_get_the_same_run(tmp_path):
    grid = "[grid]\nrecurrence = [1, 2, 3]\nseed = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\ntokens = 64\n"
    sweep, store = open_sweep(write_sweep(tmp_path, grid))
    context = get_context("fork")
    answers = context.Queue()
    workers = [context.Process(target=claim_all, args=(sweep.results, answers), daemon=True) for _ in range(4)]
    for worker in workers:
        worker.start()
    got, ended = [], 0
    while ended < len(workers):
        key = answers.get()
        ended += key is None
        got += [key] if key else []
    assert sorted(got) == sorted(run.key for run in sweep.runs)
    for worker in workers:
        worker.kill()
        worker.join()
    assert len(store.claimable()) == 30


def test_an_observation_is_taken_once(store):
    claim = store.claim()
    store.record(claim, 64, 2.5, {})
    with pytest.raises(sqlite3.IntegrityError):
        store.record(claim, 64, 2.5, {})
    assert [row[:3] for row in store.observations()] == [(claim.key, 64, 2.5)]


def test_a_worker_whose_run_was_taken_over_can_change_nothing(store, monkeypatch):
    late = store.claim()
    with monkeypatch.context() as patch:
        patch.setattr(owner, "started_at", lambda pid: None)  # as if this process had died
        assert store.claimable()[0].key == late.key
        taken = store.claim()
    assert taken.key == late.key
    assert not store.heartbeat(late, 3, 1.0)
    for action in (lambda: store.record(late, 64, 2.5, {}), lambda: store.finish(late), lambda: store.fail(late, "no")):
        with pytest.raises(ClaimLost):
            action()
    store.record(taken, 64, 2.5, {})


def test_the_run_of_a_dead_process_is_taken_over_and_that_of_a_living_one_is_not(tmp_path, store):
    code = f"""
import signal, sys
from pathlib import Path
from loopscale.sweep.store import Store
print(Store(Path({str(store.folder)!r})).claim().key, flush=True)
signal.pause()
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    key = other.stdout.readline().strip()
    assert key not in claimable(store)
    other.kill()
    # It is not waited for: even a dead process that nobody buried holds nothing.
    while key not in claimable(store):
        time.sleep(0.01)
    assert store.claim().key == key
    other.wait()


def claimable(store):
    return [run.key for run in store.claimable()]


def as_if_elsewhere(store, key):
    """Let the run's worker be a process of another machine."""
    store.database().execute("UPDATE runs SET machine = 'elsewhere/1' WHERE key = ?", (key,))


def test_a_worker_of_another_machine_is_lost_when_its_heartbeat_stands_still(store, monkeypatch):
    claim, now = store.claim(), [1000.0]
    monkeypatch.setattr(store_module.time, "monotonic", lambda: now[0])
    as_if_elsewhere(store, claim.key)
    assert claim.key not in claimable(store)
    for _ in range(5):
        now[0] += 0.9 * LEASE
        assert store.heartbeat(claim, 1, 0.0)
        assert claim.key not in claimable(store)
    now[0] += LEASE + 1
    assert claim.key in claimable(store)
    assert store.claim().key == claim.key


def test_clocks_of_two_machines_ten_minutes_apart_lose_no_living_worker(store, monkeypatch):
    """Wall clocks are never compared: a worker that is 10 minutes ahead or behind keeps its run."""
    claim = store.claim()
    as_if_elsewhere(store, claim.key)
    real = time.time()
    for skew in (-600.0, 600.0):
        monkeypatch.setattr(store_module.time, "time", lambda skew=skew: real + skew)
        assert store.heartbeat(claim, 1, 0.0)
        monkeypatch.setattr(store_module.time, "time", lambda: real)
        assert claim.key not in claimable(store)
        assert store.claim(only=[claim.key]) is None


def test_a_clock_that_jumps_loses_no_worker_of_this_machine(store, monkeypatch):
    """A process is known by when it was started since the machine was, which no setting of the clock changes."""
    claim = store.claim()
    real, boot = time.time(), psutil.boot_time()
    for jump in (-86_400, 3600, 86_400 * 365):
        monkeypatch.setattr(store_module.time, "time", lambda jump=jump: real + jump)
        monkeypatch.setattr(psutil._psplatform, "boot_time", lambda jump=jump: boot + jump)
        assert store.heartbeat(claim, 1, 0.0)
        assert store.claim(only=[claim.key]) is None
    assert [run.stale for run in store.runs()].count(True) == 0


def test_a_run_that_kills_every_worker_fails_in_the_end_and_progress_absolves_it(store, monkeypatch):
    monkeypatch.setattr(owner, "started_at", lambda pid: None)
    first = store.claim()
    for crashes in range(1, MOST_CRASHES):
        again = store.claim()
        assert again.key == first.key, crashes
    store.heartbeat(again, 5, 1.0)
    assert store.claim().key == first.key
    for _ in range(MOST_CRASHES - 1):
        other = store.claim()
    assert other.key != first.key
    failed = next(run for run in store.runs() if run.key == first.key)
    assert failed.state == "failed"
    assert "crashed" in failed.error
    assert store.retry_failed() == 1


def test_a_store_of_a_later_version_or_another_program_is_refused(tmp_path):
    path = write_sweep(tmp_path, GRID)
    sweep, store = open_sweep(path)
    with store:
        store.database().execute("PRAGMA user_version = 99")
    with pytest.raises(ValueError, match=r"schema 99 is newer than this loopscale reads \(2\)"):
        open_sweep(path)
    (sweep.results / FILE).write_bytes(b"not a database at all" * 100)
    with pytest.raises(StorageError, match=r"the database is damaged .* `loopscale sweep rebuild"):
        open_sweep(path)
    (sweep.results / FILE).unlink()
    sqlite3.connect(sweep.results / FILE).execute("CREATE TABLE other (x)")
    with pytest.raises(ValueError, match="not a sweep's"):
        open_sweep(path)


def test_two_sweeps_of_one_name_are_refused(tmp_path):
    open_sweep(write_sweep(tmp_path, GRID))
    with pytest.raises(ValueError, match=r"holds the sweep of the file 'sweep\.toml'"):
        open_sweep(write_sweep(tmp_path, GRID, file="other.toml"))
    other = GRID.replace("[grid]", 'folder = "tiny"\n[grid]')
    with pytest.raises(ValueError, match="holds the sweep of the name 'tiny'"):
        open_sweep(write_sweep(tmp_path, other, name="other"))


def test_a_finished_run_cannot_become_another_and_an_unfinished_one_may(tmp_path):
    path = write_sweep(tmp_path, GRID)
    _, store = open_sweep(path)
    claim = store.claim()
    store.record(claim, 64, 2.5, {})
    store.release(claim)
    only_second = '\n[[overrides]]\nwhen = { recurrence = 2 }\nset = { "optimizer.learning_rate" = 0.01 }\n'
    _, store = open_sweep(write_sweep(tmp_path, GRID + only_second))
    rates = [json.loads(row[0])["optimizer"]["learning_rate"] for row in _configs(store)]
    assert rates == [0.003, 0.01, 0.003]
    with pytest.raises(ValueError, match=r"base-E1-R1-s0 .*has observations.*learning_rate was 0.003 and is 0.01 now"):
        open_sweep(write_sweep(tmp_path, GRID + only_second.replace("recurrence = 2", "recurrence = [1, 2]")))


def test_points_and_runs_can_be_added_and_left_out(tmp_path):
    _, store = open_sweep(write_sweep(tmp_path, GRID))
    claim = store.claim()
    for tokens in claim.points:
        store.record(claim, tokens, 2.5, {})
    store.finish(claim)
    _, store = open_sweep(write_sweep(tmp_path, GRID.replace("[1, 2, 3]", "[1, 4]").replace("128]", "128, 256]")))
    assert [(run.key, run.state) for run in store.runs()] == [
        ("base-E1-R1-s0", "waiting"),
        ("base-E1-R4-s0", "waiting"),
    ]
    assert store.claim().done == {64, 128}
    _, store = open_sweep(write_sweep(tmp_path, GRID))
    assert store.runs()[0].done == {64, 128}


def test_the_journal_suits_the_disk(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/x {tmp_path}/far nfs4 rw 0 0\n")
    assert journal(tmp_path / "near", mounts) == "WAL"
    assert journal(tmp_path / "far" / "sweep", mounts) == "DELETE"


def _configs(store):
    return store.database().rows("SELECT config FROM runs ORDER BY position")
