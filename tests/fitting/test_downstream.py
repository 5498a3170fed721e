"""From loss to accuracy: a known ladder is found again, and the error of each step is told."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from loopscale.cli.downstream import downstream_command
from loopscale.core.errors import InputError
from loopscale.fitting.downstream import downstream


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty models whose task loss is a line of their loss, and whose accuracy a logistic curve of that."""
    random = np.random.default_rng(0)
    loss = random.uniform(2.2, 3.6, 60)
    task = 0.2 + 0.8 * loss + 0.02 * random.standard_normal(60)
    accuracy = 0.25 + 0.6 / (1 + np.exp(3 * (task - 2.4))) + 0.005 * random.standard_normal(60)
    path = tmp_path_factory.mktemp("down") / "models.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "loss", "nll", "acc"])
        writer.writerows([[f"m{i}", *row] for i, row in enumerate(zip(loss, task, accuracy, strict=True))])
        writer.writerow(["no-loss", "", 2.0, 0.5])
    return path


def test_both_steps_are_found_with_their_errors(table: Path) -> None:
    found = downstream(table, "acc", task_loss="nll", chance=0.25)
    assert found.models == 60
    assert found.first is not None
    assert found.first.values == pytest.approx((0.2, 0.8), abs=0.05)
    assert found.first.error == pytest.approx(0.02, rel=0.4)
    assert found.second.error == pytest.approx(0.005, rel=0.6)
    assert found.both < 0.02
    truth = 0.25 + 0.6 / (1 + np.exp(3 * (0.2 + 0.8 * 2.5 - 2.4)))
    at = found.predict(2.5)
    assert at["low"] < truth < at["high"]


def test_the_best_models_are_predicted_from_the_others(table: Path) -> None:
    found = downstream(table, "acc", chance=0.25)
    assert found.first is None
    assert found.backtest["models"] == 18
    assert found.backtest["error"] < 0.5 * found.backtest["without"]


def test_compute_leads_to_the_loss_and_on_to_the_accuracy(tmp_path: Path) -> None:
    """A power of compute whose floor is what the step assumes, tokens in billions, and noise of 1% in the loss."""
    random = np.random.default_rng(0)
    N, D = 10 ** random.uniform(8, 9.7, 60), 10 ** random.uniform(0.5, 2.2, 60)
    flops = 6 * N * D * 1e9
    loss = (1.6 + 0.9 * (flops / 1e21) ** -0.15) * np.exp(0.01 * random.standard_normal(60))
    accuracy = 0.25 + 0.6 / (1 + np.exp(3 * (loss - 2.6)))
    path = tmp_path / "models.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["params", "tokens_b", "loss", "acc"], *zip(N, D, loss, accuracy, strict=True)])
    found = downstream(path, "acc", chance=0.25)
    assert found.compute is not None
    assert found.from_compute is not None
    assert found.compute.error < 0.06
    assert found.from_compute["error"] < 0.5 * found.from_compute["without"]
    assert found.from_compute["models"] == 18
    truth = 0.25 + 0.6 / (1 + np.exp(3 * (1.6 + 0.9 * 10**-0.15 - 2.6)))
    at = found.predict_from_compute(1e22)
    assert at["low"] < truth < at["high"]
    line = [str(path), "--accuracy", "acc", "--chance", "0.25", "--flops", "1e22"]
    assert "after 1e22 FLOPs" in CliRunner().invoke(downstream_command, line).output
    read = json.loads(CliRunner().invoke(downstream_command, [*line, "--json"]).output)
    assert read["predictions"][0]["accuracy"] == pytest.approx(float(at["accuracy"]))
    assert read["from_compute"]["error"] == found.from_compute["error"]


def test_without_sizes_there_is_no_step_from_compute(table: Path) -> None:
    found = downstream(table, "acc", chance=0.25)
    assert found.compute is None
    with pytest.raises(InputError, match="no size and tokens"):
        found.predict_from_compute(1e22)


def test_columns_and_values_that_cannot_be_are_refused(table: Path) -> None:
    with pytest.raises(InputError, match="no column 'ac'"):
        downstream(table, "ac")
    with pytest.raises(InputError, match="goes up to"):
        downstream(table, "nll")
    with pytest.raises(InputError, match="`chance` is 2"):
        downstream(table, "acc", chance=2.0)


def test_the_command_predicts_at_a_loss(table: Path) -> None:
    line = [str(table), "--accuracy", "acc", "--task-loss", "nll", "--chance", "0.25", "--at", "2.5"]
    assert CliRunner().invoke(downstream_command, line).output.startswith("acc 0.")
    read = json.loads(CliRunner().invoke(downstream_command, [*line, "--json"]).output)
    assert read["predictions"][0]["low"] < read["predictions"][0]["accuracy"] < read["predictions"][0]["high"]
    assert CliRunner().invoke(downstream_command, [*line[:-1], "x"]).exit_code == 2
