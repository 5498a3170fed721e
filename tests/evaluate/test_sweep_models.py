"""The kept models of a sweep are evaluated as one table that knows size, E, R and D, and drawn against compute."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from loopscale.core.errors import InputError
from loopscale.core.tables import Table
from loopscale.evaluate import fit_accuracy
from loopscale.figures import GALLERY, Sources
from loopscale.figures.results import RESULTS, checked_table
from loopscale.figures.sweep_scores import significance, sweep_scores
from loopscale.scaling import DEFAULT, find_law
from sweeps import BASE, write_sweep

GRID = "keep_models = true\n[grid]\nexperts = [1, 2]\nrecurrence = [1, 2]\ntokens = [512, 1024]"


def loopscale(folder: Path, *argv: str) -> str:
    """Run a command in a folder, as a person does."""
    process = subprocess.run(
        [sys.executable, "-m", "loopscale", *argv], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sweep of eight small models, run."""
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(folder, GRID, base=BASE.replace("context = 16", "context = 64"))
    loopscale(folder, "sweep", "run", "sweep.toml", "--workers", "1", "--quiet")
    return folder


@pytest.fixture(scope="module")
def rows(folder):
    """The tidy table of the models."""
    loopscale(folder, "eval", "sweep.toml", "--tasks", "local", "--limit", "2", "--tidy", "tidy.csv")
    with (folder / "tidy.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_of_a_sweep_has_a_row_for_each_model_and_task_with_size_experts_recurrence_and_tokens(rows):
    models = {
        (row["size"], float(row["experts"]), float(row["trained_recurrence"]), float(row["tokens"])) for row in rows
    }
    assert models == {("base", E, R, D) for E in (1, 2) for R in (1, 2) for D in (512, 1024)}
    assert {row["model"] for row in rows} >= {"base-E1-R1-s0-D512", "base-E2-R2-s0-D1.02K"}
    assert all(row["recurrence"] == row["trained_recurrence"] for row in rows)
    assert all(float(row["training_flops"]) > 0 and float(row["validation_loss"]) > 0 for row in rows)


def test_the_downstream_figure_has_a_panel_along_experts_and_one_along_recurrence(rows):
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    table = checked_table(columns, RESULTS, "tidy.csv")
    picture = GALLERY["downstream"](Sources(find_law(DEFAULT), results=table))
    assert [panel.name for panel in picture.panels] == ["experts-overall", "recurrence-overall", "loss"]
    for panel in picture.panels:
        axes = panel.draw(panel.table)
        assert axes.get_xlabel() in ("training compute (FLOPs)", "validation loss (nats per token)")
    scores = sweep_scores(table)
    assert len(scores) == 8


def test_psi_of_a_sweep_is_a_table_of_experts_and_recurrence_at_the_longest_runs(folder):
    found = json.loads(loopscale(folder, "routing", "sweep.toml", "--prompts", "10", "--json"))
    cells = {(row["experts"], row["recurrence"]): row for row in found["rows"]}
    assert set(cells) == {(E, R) for E in (1, 2) for R in (1, 2)}
    assert {row["models"] for row in cells.values()} == {1}
    assert cells[1, 2]["psi"] == cells[2, 1]["psi"] == 1
    assert 1 <= cells[2, 2]["psi"] <= 2
    assert (found["prompts"], found["dtype"]) == (10, "float32")
    assert found["departures"] == []
    shown = loopscale(folder, "routing", "sweep.toml", "--prompts", "10")
    assert "mean ± std over prompts" in shown
    assert "never falls with R or with E" in shown


MEASURED = Path(__file__).parents[2] / "experiments" / "downstream" / "downstream.csv"


def measured(**renamed: str) -> Table:
    """Return the table of the thirteen measured models, with columns renamed."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        listed = list(csv.DictReader(file))
    return checked_table({renamed.get(name, name): [row[name] for row in listed] for name in listed[0]}, RESULTS, "us")


def test_the_downstream_figure_says_what_its_bars_are_and_that_the_differences_are_not_significant():
    picture = GALLERY["downstream"](Sources(find_law(DEFAULT), results=measured()))
    assert "Measured scores of 13 models" in picture.caption
    assert "one standard error" in picture.caption
    assert "the differences between the models are not significant" in picture.caption
    ranges = {panel.draw(panel.table).get_ylim() for panel in picture.panels[:-1]}
    assert len(ranges) == 1


def test_scores_that_differ_by_more_than_their_errors_are_called_significant():
    table = Table({"score": [40.0, 41.0, 60.0], "stderr": [1.0, 1.0, 1.0]})
    assert "are significant" in significance(table)
    assert significance(Table({"score": [40.0, 41.0], "stderr": [0.0, 1.0]})) == ""


def test_a_table_that_lacks_a_column_of_a_sweeps_models_is_refused():
    with pytest.raises(InputError, match="has no 'experts'"):
        sweep_scores(measured(experts="experst"))


def test_accuracy_against_loss_is_fitted_where_there_is_something_to_fit():
    loss = np.linspace(2, 4, 24)
    noise = np.random.default_rng(0).normal(0, 0.01, 24)
    fitted = fit_accuracy(loss, 0.25 + 0.5 / (1 + np.exp((loss - 3) / 0.2)) + noise)
    assert fitted.informative
    assert fitted.middle == pytest.approx(3, abs=0.1)
    assert fitted.rmse < 0.02
    flat = fit_accuracy(loss, 0.25 + noise)
    assert not flat.informative
    with pytest.raises(ValueError, match="needs 8 models"):
        fit_accuracy(loss[:4], loss[:4])
