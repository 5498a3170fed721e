"""The second micro-sweep: its page shows what ships, and the shipped runs are those of its sweep files."""

import csv
import importlib.util
import math
import sys
from pathlib import Path

import pytest

from loopscale.fitting.data.public import MICRO_2, load_micro, named_sweep
from loopscale.sweep.spec import read_sweep
from loopscale.sweep.tune import fit_rates

ROOT = Path(__file__).parents[2]
EXPERIMENT = ROOT / "experiments" / "micro-2"


@pytest.fixture(scope="module")
def results():
    spec = importlib.util.spec_from_file_location("micro_2_results", EXPERIMENT / "results.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows():
    with MICRO_2.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_tables_are_those_of_the_shipped_data(results):
    page = (ROOT / "docs" / "micro-sweep-2.md").read_text(encoding="utf-8")
    made = dict(results.tables())
    changed = [name for name, table in made.items() if f"begin {name} -->\n{table.rstrip()}\n<!-- end" not in page]
    assert len(made) > 10
    assert changed == []


def test_every_shipped_run_is_one_of_the_sweep_files(results, rows):
    files = results.sweep_files().items()
    planned = {f"{stage}-{run.key}": run.config for stage, file in files for run in read_sweep(file).runs}
    for row in rows:
        config = planned[row["run"]]
        assert float(row["learning_rate"]) == config.optimizer.learning_rate
        assert int(row["seed"]) == config.run.seed


def test_pairs_of_one_seed_differ_in_recurrence_alone(rows):
    sweep = [row for row in rows if row["stage"] == "D"]
    assert {row["recipe"] for row in sweep} == {"plain"}
    assert all(int(row["layers"]) == 4 for row in sweep)


def test_the_sweep_is_loaded_by_name_with_the_best_of_each_search(rows):
    plain = [row for row in rows if row["recipe"] == "plain" and row["state"] == "done"]
    searched = {(row["size"], row["E"], row["R"], row["D (raw)"]) for row in plain if row["stage"] == "A"}
    data = load_micro("micro-2")
    assert len(data) == len(searched) + sum(row["stage"] == "D" for row in plain)
    assert len(named_sweep("micro-2")) == len(data)
    lowest = min(float(row["loss"]) for row in plain if row["stage"] == "A")
    assert lowest in data.loss


def test_the_law_of_rates_is_a_fit_of_the_searches(results):
    law = fit_rates(results.trials())
    losses = {(t.cell, t.tokens): [] for t in results.trials()}
    for trial in results.trials():
        losses[trial.cell, trial.tokens].append((trial.loss, trial.rate))
    for ((_, width, experts, recurrence), tokens), tried in losses.items():
        predicted = law.at(width=width, experts=experts, recurrence=recurrence, tokens=tokens)
        assert abs(math.log2(predicted / min(tried)[1])) < 1.5  # within a step and a half of the best rate tried
