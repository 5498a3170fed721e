"""`accumulate = "auto"`: runs with chosen settings train and resume as plain ones do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training import corpus, small

from loopscale.planning.devices import USABLE
from loopscale.planning.job import MARGIN
from loopscale.train import settings
from loopscale.train.metrics import read_metrics
from loopscale.train.run_dir import open_run
from loopscale.train.trainer import Trainer, train

AUTO = {"accumulate": "auto", "tokens": 50 * 8 * 32, "batch": 8}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus") / "text")


def losses(out: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(out / "metrics.jsonl")]


def with_memory(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    """Let this machine have so many bytes."""
    monkeypatch.setattr(settings, "_this_device", lambda ranks: replace(settings.CPU, memory=size))


def least_memory(text: Path) -> float:
    """Return the memory in which the small run fits with one sequence at a time and every block computed again."""
    config = small(text, run={"accumulate": 8, "tokens": AUTO["tokens"], "batch": 8})
    cost = settings.step_cost(
        config.changed(run={"activation_checkpointing": True, "precision": "fp32"}),
        settings.model_without_text(config), 1, settings.CPU,
    )  # fmt: skip
    return cost.memory * 1.01 / (MARGIN * USABLE)


def test_a_run_in_little_memory_has_the_losses_of_a_plain_one(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tmp_path / "plain"
    train(small(text, run=AUTO | {"accumulate": 1}), plain)
    with_memory(monkeypatch, least_memory(text))
    trainer = Trainer(small(text, run=AUTO), tmp_path / "auto")
    run = trainer.config.run
    assert run.parts == 8
    assert run.recomputes
    trainer.train()
    assert losses(tmp_path / "auto") == pytest.approx(losses(plain), abs=1e-5)


def test_a_run_keeps_its_choice_and_resumes_bit_for_bit(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(text, run=AUTO)
    with_memory(monkeypatch, least_memory(text))
    train(config, tmp_path / "whole")
    stopped = Trainer(config, tmp_path / "stopped")
    stopped.train(until=21)
    stopped.save()
    with_memory(monkeypatch, 1e12)  # here a run that starts anew would choose other settings
    assert Trainer(config, tmp_path / "anew").config.run.parts == 1
    resumed = Trainer(config, tmp_path / "stopped")
    assert resumed.resume()
    assert resumed.config.run == stopped.config.run
    resumed.train()
    whole = Trainer(config, tmp_path / "whole")
    whole.resume()
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, resumed.tensors()[name]), name
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")


def test_long_runs_are_compiled_where_a_compiler_is(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(text, run={"compile": "auto"})
    long = config.changed(run={"tokens": 1e9})
    monkeypatch.setattr(settings.shutil, "which", lambda name: "/usr/bin/c++")
    assert not settings.settled(config, tmp_path).run.compile
    assert settings.settled(long, tmp_path).run.compile
    monkeypatch.setattr(settings.shutil, "which", lambda name: None)
    assert not settings.settled(long, tmp_path).run.compile
    open_run(tmp_path, long.changed(run={"compile": True}), 0)
    assert settings.settled(long, tmp_path).run.compile, "a run that was started keeps its choice"
