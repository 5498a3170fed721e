"""`accumulate = "auto"`: runs with chosen settings train and resume as plain ones do."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training import losses, small

from loopscale.core.devices import USABLE
from loopscale.planning.job import MARGIN
from loopscale.train import auto
from loopscale.train.job import CPU, model_without_text, real_flops_per_token, step_cost
from loopscale.train.run_dir import open_run
from loopscale.train.timing import block_rate
from loopscale.train.trainer import Trainer, train

AUTO = {"accumulate": "auto", "tokens": 50 * 8 * 32, "batch": 8}


def with_memory(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    """Let this machine have so many bytes."""
    monkeypatch.setattr(auto, "_this_device", lambda ranks: replace(CPU, memory=size))


def least_memory(text: Path) -> float:
    """Return the memory in which the small run fits with one sequence at a time and every block computed again."""
    config = small(text, run={"accumulate": 8, "tokens": AUTO["tokens"], "batch": 8})
    cost = step_cost(
        config.changed(run={"activation_checkpointing": True, "precision": "fp32"}),
        model_without_text(config), 1, CPU,
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
    monkeypatch.setattr(auto.shutil, "which", lambda name: "/usr/bin/c++")
    assert not auto.settled(config, tmp_path).run.compile
    assert auto.settled(long, tmp_path).run.compile
    monkeypatch.setattr(auto.shutil, "which", lambda name: None)
    assert not auto.settled(long, tmp_path).run.compile
    open_run(tmp_path, long.changed(run={"compile": True}), 0)
    assert auto.settled(long, tmp_path).run.compile, "a run that was started keeps its choice"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "experts", "passes", "context", "batch"),
    [(64, 4, 2, 128, 16), (128, 1, 1, 128, 16), (128, 4, 3, 256, 8), (256, 4, 2, 128, 8), (320, 2, 1, 128, 8)],
)
def test_the_estimated_time_of_a_step_is_that_of_this_machine(
    text: Path, tmp_path: Path, width: int, experts: int, passes: int, context: int, batch: int
) -> None:
    model = {"width": width, "experts": experts, "recurrence": passes, "layers": 6, "head_size": 32, "vocab_size": 512}
    run = {"batch": batch, "tokens": 1e9, "checkpoint_every": 0, "log_every": 1000}
    config = small(text, model=model, data={"context": context}, run=run)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rate = block_rate(model_without_text(config), batch, context)
        trainer = Trainer(config, tmp_path / "run")
        trainer.train(until=2)
        seconds = []
        for step in range(3, 9):
            start = time.process_time()
            trainer.train(until=step)
            seconds.append(time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    flops = real_flops_per_token(config, model_without_text(config)) * config.step_tokens
    assert flops / rate == pytest.approx(min(seconds), rel=0.25)


def test_an_estimate_on_the_cpu_measures_its_rate(text: Path) -> None:
    from loopscale.train.estimate import estimate

    slow, fast = (small(text, model={"width": width, "experts": 1}) for width in (8, 128))
    rates = [
        result.flops / result.compute_seconds for result in (estimate(config, 1, "cpu") for config in (slow, fast))
    ]
    assert rates[0] < rates[1], "narrow blocks reach less of the processor"
    assert estimate(fast, 1, "cpu").utilisation == 1
