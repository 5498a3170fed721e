"""A run with a recipe switch on resumes bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from training import corpus, small

from loopscale.train.trainer import Trainer

SWITCHES: list[dict[str, Any]] = [
    {"residual_scale": "1/R"},
    {"pass_norms": True, "pass_attention": "low-rank", "pass_router": True, "random_recurrence": "uniform"},
    {"injection": "gated"},
    {"injection": "diagonal", "backprop_passes": 1},
    {"pass_attention": "full", "pass_router": True, "balance": "pass"},
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus") / "text")


@pytest.mark.parametrize("options", SWITCHES, ids=str)
def test_a_run_with_a_switch_resumes_bit_for_bit_and_learns(
    text: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    settings = small(text, model=options, run={"tokens": 12 * 4 * 32, "log_every": 100, "checkpoint_every": 5})
    whole = Trainer(settings, tmp_path / "whole")
    before = whole.validate()
    whole.train()
    Trainer(settings, tmp_path / "stopped").train(until=6)
    resumed = Trainer(settings, tmp_path / "stopped")
    assert resumed.resume()
    assert resumed.step == 5
    resumed.train()
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, resumed.tensors()[name]), name
    assert whole.validate() == resumed.validate() < before
