"""Following a sweep: its status with time and cost, the law as points arrive, and more runs from ``loopscale next``."""

import csv
import io

import numpy as np
import pytest
from test_sweep_commands import call

from loopscale.fitting import Observations
from loopscale.scaling import Counting
from loopscale.sweep.spec import read_sweep
from sweeps import BASE, write_sweep

GRID = """[sizes.small]
width = 16
[sizes.large]
width = 32
[grid]
size = ["small", "large"]
recurrence = [1, 2]
tokens = [64, 128]
"optimizer.learning_rate" = [0.001, 0.01]
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A finished sweep with the learning rate as an axis."""
    path = write_sweep(tmp_path_factory.mktemp("follow"), GRID, base=f"{BASE}validate_every = 2\n")
    assert call("run", path, "--workers", "1", "--quiet")[0] == 0
    return path


def rows(*argv):
    return list(csv.DictReader(io.StringIO(call("export", *argv)[1])))


def test_a_training_field_may_be_an_axis_and_the_best_of_it_is_exported(path):
    runs = read_sweep(path).runs
    assert len(runs) == 8
    assert runs[0].key == "small-E1-R1-s0-learning_rate=0.001"
    assert {run.config.optimizer.learning_rate for run in runs} == {0.001, 0.01}
    every, best = rows(path), rows(path, "--best")
    assert (len(every), len(best)) == (16, 8)
    for row in best:
        same = [
            one for one in every if (one["size"], one["R"], one["D (raw)"]) == (row["size"], row["R"], row["D (raw)"])
        ]
        assert row["loss"] == min((one["loss"] for one in same), key=float)


def test_an_export_states_its_columns_so_that_its_reader_suspects_none(path, tmp_path):
    exported = rows(path)
    for row in exported:  # no reader believes in runs of 64 tokens
        row["D (raw)"] = str(50 * float(row["D (raw)"]))
    with (tmp_path / "runs.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(exported[0]))
        table.writeheader()
        table.writerows(exported)
    read = Observations.of(str(tmp_path / "runs.csv"))
    assert np.median(read.points.tokens / read.points.active) < 1
    assert not any("tokens per parameter" in warning for warning, _ in read.warnings)
    assert (read.counts, read.counts_assumed) == (Counting.WITHOUT_EMBEDDINGS, False)


def test_losses_on_the_way_are_exported_as_unfinished(path):
    finished, every = rows(path), rows(path, "--intermediate")
    added = every[len(finished) :]
    assert every[: len(finished)] == finished
    assert len(added) >= len(read_sweep(path).runs)
    assert {row["finished"] for row in finished} == {"True"}
    assert {row["finished"] for row in added} == {"False"}
    for row in added:
        same = next(one for one in finished if one["run"] == row["run"])
        per_token = [float(one["training_flops"]) / float(one["D (raw)"]) for one in (row, same)]
        assert per_token[0] == pytest.approx(per_token[1])
        assert row["N_act (raw)"] == same["N_act (raw)"]
    assert call("export", path, "--intermediate", "--best")[0] == 2


def test_the_status_shows_time_and_cost(path):
    code, text = call("status", path, "--all", "--price", "36")
    assert code == 0
    assert "8/8 runs, 16/16 observations" in text
    assert "dollars spent" in text
    assert call("status", path, "--live")[0] == 0


def test_the_law_is_fitted_as_points_arrive(path):
    code, text = call("watch", path, "--once", "--resamples", "4")
    assert (code, text.count("\n")) == (0, 1)
    assert text.startswith(("16 observations, RMSE ", "no law yet: "))
    assert len(text) <= 80 or text.startswith("no law yet: ")


def test_runs_that_next_recommends_are_added_to_the_file(tmp_path, capsys):
    path = write_sweep(tmp_path, GRID.replace('"optimizer.learning_rate" = [0.001, 0.01]\n', ""))
    before = read_sweep(path)
    recommended = tmp_path / "next.csv"
    recommended.write_text("model,experts,recurrence,tokens\nsmall,4,2,256\nlarge,1,1,128\n")
    assert "1 point added" in call("extend", path, "--next", recommended)[1]
    after = read_sweep(path)
    assert {run.key for run in after.runs} - {run.key for run in before.runs} == {"small-E4-R2-s0"}
    text = path.read_text()
    recommended.write_text("model,experts,recurrence,tokens\nhuge,4,2,256\n")
    assert call("extend", path, "--next", recommended)[0] == 2
    assert f"{recommended}: size 'huge' is neither" in capsys.readouterr().err
    assert path.read_text() == text
    assert call("extend", "paper", "--next", recommended)[0] == 2
