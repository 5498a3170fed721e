"""A database that is damaged, empty or lost, a full disk, and a database of loopscale 0.1."""

import json
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from test_sweep_commands import call

from loopscale.cli.reading import read_sweep_runs
from loopscale.core.errors import InputError, StorageError
from loopscale.sweep.database import FILE, Database
from loopscale.sweep.export import observations
from loopscale.sweep.export import table as observations_table
from loopscale.sweep.spec import read_sweep
from loopscale.sweep.store import Assignment, Store, run_folder
from loopscale.sweep.worker import work
from sweeps import open_sweep, write_sweep

GRID = "[grid]\nrecurrence = [1, 2]\ntokens = [64, 128]\n"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A finished sweep of four points, and its export."""
    path = write_sweep(tmp_path_factory.mktemp("finished"), GRID)
    assert call("run", path, "--workers", "1", "--quiet")[0] == 0
    return path, call("export", path)[1]


@pytest.fixture
def finished(original, tmp_path):
    """A copy of it to damage."""
    path, export = original
    return shutil.copytree(path.parent, tmp_path / "finished") / path.name, export


def damage(path: Path) -> None:
    """Overwrite bytes all over a file, but not its first page, as a failing disk would."""
    data, draw = bytearray(path.read_bytes()), random.Random(0)
    for _ in range(len(data) // 4):
        data[draw.randrange(4096, len(data))] = draw.randrange(256)
    path.write_bytes(data)


def refused(capsys, *argv):
    """Run a command that must end in one sentence; return it."""
    code, _ = call(*argv)
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1)
    return error


@pytest.mark.parametrize("how", ["damaged", "empty", "deleted"])
def test_a_lost_database_is_one_sentence_and_rebuild_gives_the_same_export(finished, capsys, how):
    path, export = finished
    database = read_sweep(path).results / FILE
    if how == "damaged":
        damage(database)
    elif how == "empty":
        database.write_bytes(b"")
    else:
        database.unlink()
    for command in (("export",), ("run", "--workers", "1", "--quiet")):
        assert "`loopscale sweep rebuild" in refused(capsys, command[0], path, *command[1:])
    code, text = call("rebuild", path)
    assert (code, "4 of 4 observations restored" in text) == (0, True)
    assert call("export", path)[1] == export
    assert call("run", path, "--workers", "1", "--quiet") == (0, "tiny: 2/2 runs, 4/4 observations\n")


def test_an_observation_that_lacks_a_field_is_one_sentence_with_the_remedy(finished, capsys):
    path, export = finished
    database = sqlite3.connect(read_sweep(path).results / FILE)
    database.execute("UPDATE observations SET facts = replace(facts, '\"active\"', '\"actjve\"') WHERE tokens = 128")
    database.commit()
    database.close()
    error = refused(capsys, "export", path)
    assert "base-E1-R1-s0 at 128 tokens has no 'active'" in error
    assert "`loopscale sweep rebuild" in error
    assert call("rebuild", path)[0] == 0
    assert call("export", path)[1] == export


def test_rebuild_without_results_is_refused_and_writes_nothing(tmp_path, capsys):
    path = write_sweep(tmp_path, GRID)
    assert "there are no results of the sweep 'tiny'" in refused(capsys, "rebuild", path)
    assert not (tmp_path / "tiny").exists()


def test_rebuild_leaves_out_results_of_other_settings_and_damaged_summaries(finished):
    path, _ = finished
    sweep = read_sweep(path)
    folder = run_folder(sweep.results, sweep.runs[0].key)
    summary = (folder / "D64" / "summary.json").read_text()
    config = (folder / "D128" / "run.json").read_text()
    (folder / "D64" / "summary.json").write_text(summary[:40])
    changed = json.loads(config)
    changed.pop("checksum", None)  # as a file that was written by hand
    changed["config"]["optimizer"]["learning_rate"] = 1.0
    (folder / "D128" / "run.json").write_text(json.dumps(changed))
    _, text = call("rebuild", path)
    (folder / "D64" / "summary.json").write_text(summary)
    (folder / "D128" / "run.json").write_text(config)
    text = " ".join(text.split())  # where lines wrap depends on the length of the folder's path
    assert "2 of 4 observations restored" in text
    assert "not JSON" in text
    assert "learning_rate was 1.0 and is 0.003 now" in text
    assert "4 of 4 observations restored" in call("rebuild", path)[1]


@pytest.fixture(scope="module")
def elsewhere(original, tmp_path_factory):
    """The same sweep file, trained on another text."""
    path = Path(shutil.copytree(original[0].parent, tmp_path_factory.mktemp("other") / "sweep")) / original[0].name
    sweep = read_sweep(path)
    shutil.rmtree(sweep.results)
    text = path.parent / "text.txt"
    text.write_text(text.read_text()[::-1])
    shutil.rmtree(path.parent / "tokens")
    assert call("run", path, "--workers", "1", "--quiet")[0] == 0
    return sweep


def test_a_run_that_was_trained_on_another_text_is_left_out_by_name(finished, elsewhere, capsys):
    path, export = finished
    sweep = read_sweep(path)
    key = sweep.runs[0].key
    shutil.rmtree(run_folder(sweep.results, key))
    shutil.copytree(run_folder(elsewhere.results, key), run_folder(sweep.results, key))
    code, out = call("rebuild", path)
    assert (code, "2 of 4 observations restored" in out) == (0, True)
    assert out.count(f"left out: run {key} at") == 2
    assert call("export", path)[1].splitlines() == [row for row in export.splitlines() if not row.startswith(key)]


def test_an_export_leaves_out_and_verify_finds_what_the_database_mixes(finished, elsewhere, capsys):
    path, _ = finished
    sweep = read_sweep(path)
    key, tokens = sweep.runs[0].key, next(iter(sweep.runs[0].points))
    with Store(elsewhere.results) as other:
        loss, facts = next((loss, facts) for run, D, loss, facts in other.observations() if (run, D) == (key, tokens))
    with Store(sweep.results) as store:
        store.database().execute("DELETE FROM observations WHERE run = ? AND tokens = ?", (key, tokens))
        store.restore(key, tokens, loss, facts)
    with pytest.raises(StorageError, match="were trained on different data"):
        read_sweep_runs(str(path))
    with Store(sweep.results) as store:
        table, left_out = observations_table(sweep, store)
    assert len(table) == 3
    assert [f"run {key} at {tokens} tokens was trained on other data" in reason for reason in left_out] == [True]


def test_an_export_leaves_out_runs_of_other_settings_and_names_several_versions(finished):
    """The file was changed after the runs, and nothing was run since."""
    path, _ = finished
    sweep = read_sweep(path)
    key, tokens = sweep.runs[0].key, next(iter(sweep.runs[0].points))
    with Store(sweep.results) as store:
        change = "UPDATE observations SET facts = json_set(facts, ?, ?) WHERE run = ? AND tokens = ?"
        store.database().execute(change, ("$.version", "0.1", key, tokens))
        assert (
            observations(sweep, store)[0].notes[-1].startswith("observations of several versions of loopscale: 0.1 (1)")
        )
        path.write_text(path.read_text().replace("head_size = 8", "head_size = 4"))
        with pytest.raises(InputError, match="none of the 4 results belongs to the sweep"):
            observations(read_sweep(path), store)
        store.database().execute(change, ("$.config.model.head_size", 4, key, tokens))
        table, left_out = observations_table(read_sweep(path), store)
    assert (len(table), len(left_out)) == (1, 3)
    assert all("was trained with [model] head_size = 8; the sweep's file says 4" in reason for reason in left_out)


def test_a_sweep_that_was_copied_without_its_times_is_rebuilt_and_exported(original, tmp_path):
    path, export = original
    copy = Path(shutil.copytree(path.parent, tmp_path / "copy", copy_function=shutil.copyfile)) / path.name
    assert call("run", copy, "--workers", "1", "--quiet")[0] == 0
    assert call("rebuild", copy)[0] == 0
    assert call("export", copy) == (0, export)


def test_a_database_that_is_deleted_under_a_worker_loses_no_result(original, tmp_path, monkeypatch):
    path = write_sweep(tmp_path / "lost", GRID)
    sweep, store = open_sweep(path)
    store.__exit__()
    record = Store.record

    def delete_after(self, *facts):
        record(self, *facts)
        for file in sweep.results.glob(f"{FILE}*"):
            file.unlink()

    monkeypatch.setattr(Store, "record", delete_after)
    assert "sweep rebuild" in (work(Assignment(str(sweep.root), sweep.folder, "session", keep_models=False)) or "")
    monkeypatch.undo()
    code, out = call("rebuild", path)
    assert (code, "observations restored" in out) == (0, True)
    assert call("run", path, "--workers", "1", "--quiet")[0] == 0
    assert call("export", path) == (0, original[1])


def test_a_full_disk_stops_the_sweep_at_once(tmp_path):
    """No file may grow beyond 50 kB, so the first checkpoint cannot be written; one worker meets that, not sixty."""
    path = write_sweep(tmp_path, GRID)
    sweep, store = open_sweep(path)
    store.__exit__()
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
from loopscale.cli import main
if __name__ == "__main__":
    main(["sweep", "run", {str(path)!r}, "--workers", "1", "--quiet"])
"""
    (tmp_path / "main.py").write_text(code)
    process = subprocess.run([sys.executable, tmp_path / "main.py"], capture_output=True, text=True, check=False)
    assert (process.returncode, "Traceback" in process.stderr) == (2, False), process.stderr
    assert "File too large" in process.stderr
    with Store(sweep.results) as store:
        assert sum(what == "claimed" for _, _, what, _ in store.events()) == 1
        assert {run.state for run in store.runs()} == {"waiting"}
    assert call("run", path, "--workers", "1", "--quiet")[0] == 0


def test_a_database_that_cannot_grow_is_one_sentence(tmp_path):
    database = Database(tmp_path, make=True)
    (pages,) = database.row("PRAGMA page_count")
    database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageError, match="free some disk space"):
        database.execute("INSERT INTO facts VALUES ('name', ?)", ("x" * 100_000,))


def test_a_database_of_an_older_version_is_refused_with_what_to_do(finished):
    path, export = finished
    database = read_sweep(path).results / FILE
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(InputError, match=r"schema 1 is older than this loopscale reads \(2\); .*sweep rebuild"):
        Store(read_sweep(path).results)
    assert call("rebuild", path)[0] == 0
    assert call("export", path)[1] == export


def test_a_fit_reads_the_sweep_file_and_refuses_results_that_were_changed(finished):
    path, export = finished
    rows = read_sweep_runs(str(path))
    assert len(rows) == len(export.splitlines()) - 1
    assert any("compared with the summaries of their runs" in note for note in rows.notes)
    summary = next(path.parent.glob("**/D*/summary.json"))
    stored = json.loads(summary.read_text())
    summary.write_text(json.dumps(stored | {"validation_loss": stored["validation_loss"] - 1}))
    with pytest.raises(StorageError, match="summary"):
        read_sweep_runs(str(path))
    with pytest.raises(InputError, match="give the sweep file"):
        read_sweep_runs(str(read_sweep(path).results))


@pytest.mark.parametrize("objects", ["memory://sweep", "copies"])
def test_finished_points_are_copied_to_a_url_and_rebuild_fetches_them(tmp_path, monkeypatch, objects):
    monkeypatch.chdir(tmp_path)
    path = write_sweep(tmp_path, f'objects = "{objects}"\n[grid]\ntokens = [64, 128]\n')
    sweep, store = open_sweep(path)
    with store:
        assert work(Assignment(str(sweep.root), sweep.folder, "session", False, objects=sweep.objects)) is None

    before = call("export", path)[1]
    assert before.count("\n") == 3
    system, base = fsspec.core.url_to_fs(objects)
    assert {name.rpartition("/")[2] for name in system.find(base)} >= {"summary.json", "run.json", "metrics.jsonl"}
    shutil.rmtree(sweep.results)
    code, out = call("rebuild", path)
    assert (code, "2 of 2 observations restored" in out) == (0, True)
    assert call("export", path)[1] == before


def test_objects_that_cannot_be_reached_stop_the_sweep_with_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_sweep(tmp_path, 'objects = "nosuch://sweep"\n[grid]\ntokens = 64\n')
    sweep, store = open_sweep(path)
    with store:
        problem = work(Assignment(str(sweep.root), sweep.folder, "session", False, objects=sweep.objects))
    assert problem is not None
    assert "nosuch://sweep: cannot be used for the objects of the sweep" in problem
