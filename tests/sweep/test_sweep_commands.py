"""The four verbs, as a person calls them."""

import csv
import io
import json
import shutil
from contextlib import redirect_stdout

import pytest
from killing import assert_nothing_lost_or_doubled

from loopscale.cli import main
from loopscale.fitting import Observations
from loopscale.sweep.spec import read_sweep
from sweeps import BASE, write_sweep

GRID = """[grid]
recurrence = [1, 2]
seed = [0, 1]
tokens = [320, 640]
[[labels]]
when = { recurrence = 2 }
label = "held-out"
"""


def call(*argv: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it prints."""
    out = io.StringIO()
    with pytest.raises(SystemExit) as stop, redirect_stdout(out):
        main(["sweep", *map(str, argv)])
    return stop.value.code, out.getvalue()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Times that other machines measured are not ours."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_sweep_is_planned_run_moved_and_finished(tmp_path, monkeypatch):
    path = write_sweep(tmp_path / "here", GRID)
    code, text = call("plan", path, "--json")
    plan = json.loads(text)["runs"]
    assert (code, len(plan)) == (0, 4)
    assert all(run["observations"] == 2 and run["seconds"] > 0 and run["disk"] > 0 for run in plan)
    assert plan[0]["flops_alone"] > plan[0]["flops"]
    assert not (tmp_path / "here" / "tiny").exists()

    assert call("run", path, "--limit", "1", "--workers", "1", "--quiet")[0] == 0
    status = json.loads(call("status", path, "--json")[1])
    assert (status["done"], status["waiting"], status["observations"]) == (1, 3, 2)
    half = list(csv.DictReader(io.StringIO(call("export", path)[1])))
    assert len(half) == 2

    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = tmp_path / "there" / "sweep.toml"
    assert call("run", moved, "--workers", "2", "--quiet") == (0, "tiny: 4/4 runs, 8/8 observations\n")
    monkeypatch.chdir(moved.parent)
    assert_nothing_lost_or_doubled(read_sweep(moved), tmp_path)
    assert str(tmp_path / "here").encode() not in (moved.parent / "tiny" / "sweep.sqlite").read_bytes()

    code, text = call("export", moved, "--out", tmp_path / "runs.csv")
    assert "8 of 8 observations" in text
    seen = Observations.of(tmp_path / "runs.csv")
    assert (len(seen), len(seen.runs)) == (8, 4)
    rows = list(csv.DictReader((tmp_path / "runs.csv").open()))
    assert {(row["R"], row["label"]) for row in rows} == {("1.0", ""), ("2.0", "held-out")}
    assert rows[:2] == half
    assert "✓✓✓✓" in call("status", moved, "--all")[1]


def test_a_failed_run_keeps_its_error_and_can_be_tried_again(tmp_path):
    diverging = GRID + '[[overrides]]\nwhen = { recurrence = 2 }\nset = { "optimizer.learning_rate" = 1e30 }\n'
    path = write_sweep(tmp_path, diverging, base=BASE.replace("clip = 1.0", ""))
    code, text = call("run", path, "--workers", "1", "--quiet")
    assert code == 1
    assert "2/4 runs, 4/8 observations, 2 failed" in text
    failed = [run for run in json.loads(call("status", path, "--json")[1])["runs"] if run["state"] == "failed"]
    assert all("the loss is not finite" in run["error"] for run in failed)
    assert "the loss is not finite" in call("status", path)[1]
    assert call("run", path, "--workers", "1", "--quiet")[0] == 1
    write_sweep(tmp_path, GRID)
    assert call("run", path, "--workers", "1", "--quiet", "--retry-failed")[0] == 0


def test_a_sweep_goes_on_when_more_processes_tokenise_and_stops_when_losses_are_measured_otherwise(tmp_path, capsys):
    path = write_sweep(tmp_path, GRID)
    assert call("run", path, "--limit", "1", "--workers", "1", "--quiet")[0] == 0
    write_sweep(tmp_path, GRID, base=BASE.replace("context = 16", "context = 16\nprocesses = 1"))
    assert call("run", path, "--limit", "1", "--workers", "1", "--quiet")[0] == 0
    write_sweep(tmp_path, GRID, base=BASE.replace("validation_sequences = 4", "validation_sequences = 5"))
    assert call("run", path, "--limit", "1", "--workers", "1", "--quiet")[0] == 2
    assert "its [run] validation_sequences was 4 and is 5 now" in capsys.readouterr().err


def test_time_is_up_and_a_later_call_goes_on(tmp_path):
    path = write_sweep(tmp_path, GRID)
    assert call("run", path, "--max-minutes", "0", "--quiet") == (0, "tiny: 0/4 runs, 0/8 observations\n")
    assert call("run", path, "--workers", "1", "--quiet")[1] == "tiny: 4/4 runs, 8/8 observations\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("run", "--cores", "999"), "core 999 is not one of"),
        (("run", "--cores", "x"), "'x' is not a list of cores"),
        (("run", "--ray-address", "auto"), "--ray-address goes with --on ray"),
        (("run", "--on", "slurm"), "give the number of jobs at once with --workers"),
        (("run", "--on", "slurm", "--workers", "2", "--slurm", "partition"), "is not KEY=VALUE"),
        (("run", "--on", "slurm", "--workers", "1", "--slurm", "cluster=local", "--slurm", "tim=1"), "unknown setting"),
        (("run", "--detach"), "--detach goes with --on slurm"),
        (("status",), "there is no sweep here yet"),
        (("export",), "there is no sweep here yet"),
    ],
)  # fmt: skip
def test_wrong_calls_are_refused_in_a_sentence(tmp_path, capsys, argv, said):
    path = write_sweep(tmp_path, GRID)
    with pytest.raises(SystemExit) as stop:
        main(["sweep", argv[0], str(path), *argv[1:]])
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    assert said in err
