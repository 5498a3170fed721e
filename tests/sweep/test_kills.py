"""Workers die at random, on this machine, on Ray and under submitit, and no run is lost or doubled."""

import signal

import pytest
import torch
from killing import assert_nothing_lost_or_doubled, finish, kill_some, start, until, workers

from loopscale.sweep.spec import read_sweep
from loopscale.sweep.store import Store
from sweeps import write_sweep

GRID = """[grid]
recurrence = [1, 2]
seed = [0, 1, 2]
tokens = [640, 1280]
"""
KILLS = 24


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A sweep of six runs and twelve points."""
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    return write_sweep(tmp_path, GRID)


def check(path, tmp_path, kills, *options):
    """Kill workers of a sweep and see it end well."""
    sweep = read_sweep(path)
    main = start(path, *options)
    killed = kill_some(sweep.results, main, kills)
    out, err = main.communicate(timeout=3600)
    assert (main.returncode, killed) == (0, kills), err
    assert "6/6 runs, 12/12 observations" in out
    assert_nothing_lost_or_doubled(sweep, tmp_path)


def test_local_workers_killed_24_times_and_then_their_parent_lose_and_double_nothing(path, tmp_path):
    sweep = read_sweep(path)
    main = start(path, "--workers", "2")
    killed = kill_some(sweep.results, main, KILLS)
    main.kill()
    _, err = main.communicate()
    assert killed == KILLS, err
    until(lambda: not workers(sweep.results))  # they end by themselves
    finish(path)
    assert_nothing_lost_or_doubled(sweep, tmp_path)


def test_an_interrupted_sweep_stops_at_checkpoints_and_goes_on(path, tmp_path):
    sweep = read_sweep(path)
    main = start(path, "--workers", "2")
    until(lambda: workers(sweep.results) or main.poll() is not None)
    main.send_signal(signal.SIGINT)
    _, err = main.communicate(timeout=3600)
    assert (main.returncode, "Traceback" in err) == (130, False)
    with Store(sweep.results) as store:
        assert {run.state for run in store.runs()} <= {"waiting", "done"}
        assert store.claimable()
    finish(path)
    assert_nothing_lost_or_doubled(sweep, tmp_path)
    with Store(sweep.results) as store:
        assert not [what for _, _, what, _ in store.events() if what == "taken over"]


@pytest.mark.slow
def test_ray_workers_killed_24_times_lose_and_double_nothing(path, tmp_path):
    pytest.importorskip("ray")
    check(path, tmp_path, KILLS, "--on", "ray", "--workers", "3")


@pytest.mark.slow
def test_jobs_of_submitit_killed_lose_and_double_nothing(path, tmp_path):
    pytest.importorskip("submitit")
    check(path, tmp_path, 6, "--on", "slurm", "--workers", "2", "--slurm", "cluster=local")
