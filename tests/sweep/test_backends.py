"""A backend is a file; a worker leaves a run whose folder another process still holds."""

import importlib
import multiprocessing
import sys
import time

import pytest
from click.testing import CliRunner

import loopscale.cli.sweep.run  # noqa: F401 - reloaded below
import loopscale.sweep.backends as package
from loopscale.sweep.store import Job, run_folder
from loopscale.sweep.worker import work
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
        return Launcher(self.given["toy_note"]), 1
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
    job = Job(str(sweep.root), sweep.folder, "session", keep_models=False)
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
