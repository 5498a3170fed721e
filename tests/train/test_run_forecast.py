"""What a run says of itself while it trains: a forecast from a law, scores of tasks, batches made ahead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from training import small

import loopscale as ls
from loopscale.architecture import Architecture
from loopscale.core.errors import InputError
from loopscale.evaluate.runner import while_training
from loopscale.fitting import Observations
from loopscale.scaling import Counting, Points
from loopscale.train.callbacks.evaluation import Evaluation
from loopscale.train.callbacks.forecast import Forecast
from loopscale.train.metrics import read_metrics
from loopscale.train.trainer import Trainer, train


@pytest.fixture(scope="module")
def law(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A law of dense models that reach a loss of about 1.5."""
    path = tmp_path_factory.mktemp("law") / "law.json"
    N, D = (axis.ravel() for axis in np.meshgrid([1e3, 4e3, 1.6e4, 6.4e4], [3e2, 1e3, 4e3, 1.6e4]))
    noise = 0.003 * np.random.default_rng(0).standard_normal(N.size)
    loss = (1.2 + 3 / N**0.3 + 8 / D**0.4) * np.exp(noise)
    runs = np.array([f"run {k}" for k in range(N.size)])
    points = Points(N, D, np.ones(N.size), np.ones(N.size), None, N)
    data = Observations(points, loss, runs, "simulated", Counting.WITHOUT_EMBEDDINGS)
    ls.fit(data, resamples=20).law.save(path)
    return path


@pytest.fixture(scope="module")
def architecture(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Architecture:
    trainer = Trainer(small(text, model={"experts": 1}), tmp_path_factory.mktemp("run"))
    return trainer.model_config.to_architecture()


def test_a_run_inside_its_forecast_raises_no_alarm_and_one_outside_does(law: Path, architecture: Architecture) -> None:
    forecast = Forecast(str(law), architecture, 1, 4096, slack=0.1)
    row = forecast.row(4096, forecast.prediction.loss)
    assert row["forecast_low"] < row["forecast"] < row["forecast_high"]
    assert "alarm" not in row
    assert forecast.summary(row["forecast"])["inside"]
    assert "above the forecast" in forecast.row(4096, row["forecast_high"] + 0.05)["alarm"]
    assert "below the forecast" in forecast.row(2048, row["forecast_low"] - 0.05)["alarm"]
    assert not forecast.summary(row["forecast_high"] + 0.05)["inside"]


def test_before_its_end_a_run_may_be_above_by_what_tokens_and_decay_still_gain(
    law: Path, architecture: Architecture
) -> None:
    forecast = Forecast(str(law), architecture, 1, 4096, slack=0.1)
    half = ls.predict(architecture, tokens=2048, recurrence=1, law=str(law)).loss
    high = forecast.row(4096, 1.5)["forecast_high"] - forecast.prediction.loss
    assert "alarm" not in forecast.row(2048, half + high + 0.09)
    assert "decay of the learning rate" in forecast.row(2048, half + high + 0.11)["alarm"]
    assert "alarm" not in forecast.row(400, 9.0)  # too early to judge


def test_the_forecast_is_in_the_metrics_and_in_the_summary(text: Path, law: Path, tmp_path: Path) -> None:
    run = {"law": str(law), "validate_every": 10, "tokens": 20 * 128}
    summary = train(small(text, model={"experts": 1, "recurrence": 1}, run=run), tmp_path / "run")
    assert summary is not None
    assert summary["forecast"]["trust"]["level"] in ("inside", "near", "far")
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "validation_loss" in row]
    assert len(rows) == 2
    assert all(row["forecast_low"] < row["forecast_high"] for row in rows)


def test_a_law_that_cannot_forecast_the_run_is_refused_before_it_starts(text: Path, tmp_path: Path) -> None:
    config = small(text, run={"law": "looped-moe-2026"})
    with pytest.raises(InputError, match=r"field 'law': .* withheld; remove the field"):
        Trainer(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tasks_are_evaluated_during_training_and_change_no_loss(text: Path, tmp_path: Path) -> None:
    run = {"tokens": 4 * 128}
    train(small(text, run=run), tmp_path / "plain")
    config = small(text, run={**run, "eval_tasks": "local", "eval_every": 2, "eval_limit": 2})
    with pytest.raises(InputError, match="'eval_tasks' is for `loopscale train`"):
        Trainer(config, tmp_path / "refused")
    train(config, tmp_path / "evaluated", callbacks=[Evaluation(while_training(config))])
    plain, rows = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("plain", "evaluated"))
    assert [row["loss"] for row in rows] == [row["loss"] for row in plain]
    assert [any(name.startswith("eval/") for name in row) for row in rows] == [False, True, False, True]


def test_batches_that_are_made_ahead_are_the_same(text: Path, tmp_path: Path) -> None:
    trainer = Trainer(small(text), tmp_path / "run")
    for step in (0, 1, 2, 7):
        for ahead, now in zip(trainer.prefetched(step), trainer.parts(step), strict=True):
            assert np.array_equal(ahead.ids, now.ids)
            assert np.array_equal(ahead.labels, now.labels)
