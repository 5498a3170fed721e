"""A backend is a file; a worker leaves a run whose folder another process still holds."""

import importlib
import json
import multiprocessing
import socket
import sys
import time
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import loopscale.cli.sweep.run  # noqa: F401 - reloaded below
import loopscale.sweep.backends as package
from loopscale.core.errors import StorageError
from loopscale.sweep.backends import ray as ray_backend
from loopscale.sweep.store import Assignment, run_folder
from loopscale.sweep.worker import _torchrun, work
from loopscale.train import run_dir
from sweeps import open_sweep, write_sweep

TOY = """
from loopscale.sweep.backends import Backend, Setting

class Worker:
    def __init__(self, sentence):
        self.sentence = sentence
    def alive(self): return False
    def succeeded(self): return True
    def problem(self): return self.sentence
    def kill(self): pass

class Launcher:
    def __init__(self, note): self.note = note
    def start(self, job):
        from loopscale.sweep.worker import work
        self.note.write_text("started")
        return Worker(work(job))
    def wait(self, seconds): pass
    def close(self): pass

class ToyBackend(Backend):
    summary = "the process of the command itself"
    from pathlib import Path
    settings = {"toy_note": Setting("A file to write.", "PATH", Path)}
    def launcher(self, sweep):
        return Launcher(self.values["toy_note"]), 1
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    """The command ``sweep run`` with a backend ``toy``, which is one file more."""
    folder = tmp_path / "backends"
    folder.mkdir()
    (folder / "toy.py").write_text(TOY)
    module = sys.modules["loopscale.cli.sweep.run"]
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    package.backends.cache_clear()
    yield importlib.reload(module).run
    monkeypatch.undo()
    package.backends.cache_clear()
    sys.modules.pop(f"{package.__name__}.toy")
    importlib.reload(module)


def test_a_new_file_is_a_new_backend_with_its_own_option(tmp_path, command):
    path = write_sweep(tmp_path, "[grid]\nseed = [0, 1]\ntokens = [320]\n")
    note = tmp_path / "note"
    assert "--toy-note PATH" in CliRunner().invoke(command, ["--help"]).output
    done = CliRunner().invoke(command, [str(path), "--on", "toy", "--toy-note", str(note), "--quiet"])
    assert done.exit_code == 0, done.output
    assert "2/2 runs, 2/2 observations" in done.output
    assert note.read_text() == "started"
    refused = CliRunner().invoke(command, [str(path), "--toy-note", str(note), "--quiet"])
    assert "--toy-note goes with --on toy, and this is --on local" in str(refused.exception)


def _hold(folder, ready, done):
    with run_dir.locked(folder):
        ready.touch()
        while not done.exists():
            time.sleep(0.01)


def test_a_run_whose_folder_is_in_use_waits_and_the_others_are_trained(tmp_path, monkeypatch):
    """As when a worker was frozen for longer than its lease: it still holds the folder of the run that it lost."""
    monkeypatch.setattr(run_dir, "LINGER", 0.1)
    path = write_sweep(tmp_path, "[grid]\nseed = [0, 1]\ntokens = [320]\n")
    sweep, store = open_sweep(path)
    ready, done = tmp_path / "ready", tmp_path / "done"
    folder = run_folder(sweep.results, sweep.runs[0].key)
    child = multiprocessing.get_context("fork").Process(target=_hold, args=(folder, ready, done))
    child.start()
    job = Assignment(str(sweep.root), sweep.folder, "session", keep_models=False)
    try:
        while not ready.exists() and child.is_alive():
            time.sleep(0.01)
        assert work(job) is None
        assert [run.state for run in store.runs()] == ["waiting", "done"]
    finally:
        done.touch()
        child.join()
    assert work(job) is None
    assert [run.state for run in store.runs()] == ["done", "done"]


@pytest.mark.parametrize("lost", ["head", "node"])
def test_a_lost_ray_cluster_is_one_sentence(monkeypatch, lost):
    """Ray itself waits a minute for a lost head and then ends the process; without its node, it waits for ever."""
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        head.listen()
        nodes = [{"NodeID": "own", "Alive": True}, {"NodeID": "other", "Alive": True}]
        context = SimpleNamespace(gcs_address=f"127.0.0.1:{head.getsockname()[1]}", get_node_id=lambda: "own")
        stub = SimpleNamespace(
            init=lambda **_: None, cluster_resources=lambda: {"CPU": 2}, nodes=lambda: nodes,
            get_runtime_context=lambda: context, wait=lambda tasks, timeout: ([], tasks),
        )  # fmt: skip
        monkeypatch.setattr(ray_backend, "require", lambda *_, **__: stub)
        cluster = ray_backend.Ray(None, 1, ())
        worker = ray_backend.RayWorker(cluster, ["task"], None)
        cluster.wait(0)
        assert worker.alive()
        if lost == "head":
            head.close()
        else:
            nodes[0]["Alive"] = False
        with pytest.raises(StorageError, match="the cluster was lost"):
            cluster.wait(0)
    assert not worker.alive()


@pytest.mark.parametrize(("recorded", "told"), [("StorageError: the disk is full", "the disk is full"), (None, None)])
def test_what_ends_a_process_of_a_run_reaches_the_worker(tmp_path, monkeypatch, recorded, told):
    """A full disk is a problem of every worker; a lost process is one of this run, and counts as a crash."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
    from torch.distributed.launcher import api

    file = tmp_path / "error.json"
    if recorded is not None:
        file.write_text(json.dumps({"message": {"message": recorded, "extraInfo": {"timestamp": "1"}}}))

    def launch(config, entrypoint):
        def run(*_):
            raise ChildFailedError("train_rank", {0: ProcessFailure(0, 1, -9, str(file))})

        return run

    monkeypatch.setattr(api, "elastic_launch", launch)
    claim = SimpleNamespace(claim_id="x", key="run")
    job = Assignment(".", ".", "session", keep_models=False)
    if told is None:
        assert "process 0 of the run ended: Signal 9 (SIGKILL)" in _torchrun(claim, job, "127.0.0.1:1")
    else:
        with pytest.raises(StorageError, match=told):
            _torchrun(claim, job, "127.0.0.1:1")
