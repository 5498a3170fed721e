"""The micro-sweep's page shows what ships, and the shipped runs are those of the sweep's file."""

import csv
import importlib.util
from pathlib import Path

import pytest

from loopscale.fitting import fit
from loopscale.fitting.data.public import load_micro
from loopscale.sweep.spec import read_sweep

ROOT = Path(__file__).parents[2]
EXPERIMENT = ROOT / "experiments" / "micro-sweep"


@pytest.fixture(scope="module")
def results():
    spec = importlib.util.spec_from_file_location("micro_results", EXPERIMENT / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["gains", "noise", "psi", "losses", "losses-long"])
def test_the_tables_are_those_of_the_shipped_data(results, name):
    page = (ROOT / "docs" / "micro-sweep.md").read_text(encoding="utf-8")
    made = {"losses": lambda: results.losses("0"), "losses-long": lambda: results.losses("3")}
    table = made.get(name, getattr(results, name, None))()
    assert f"<!-- begin {name} -->\n{table.rstrip()}\n<!-- end {name} -->" in page


def test_the_page_says_the_fitted_coefficients(results):
    page = (ROOT / "docs" / "micro-sweep.md").read_text(encoding="utf-8")
    said = page.split("<!-- begin coefficients -->")[1].split("| kappa1 |")[1].split("(")[0]
    found = fit(load_micro(), outer="joint-moe", mapping="bounded", resamples=0).law.coefficients["kappa1"]
    assert float(said) == pytest.approx(found, rel=0.02)


def test_every_run_of_the_sweeps_file_ships(results):
    planned = {run.key: run.config for run in read_sweep("micro").runs}
    with results.DATA.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["run"] for row in rows} == set(planned)
    for row in rows:
        config = planned[row["run"]]
        assert int(row["seed"]) == config.run.seed
        assert float(row["R"]) == config.model.recurrence
        assert float(row["learning_rate"]) == config.optimizer.learning_rate
