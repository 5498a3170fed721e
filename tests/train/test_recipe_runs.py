"""A run with a recipe switch on resumes bit for bit."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from training import small

from loopscale.core.errors import InputError
from loopscale.train.job import real_flops_per_token
from loopscale.train.schedule import recurrence_shares, shared_steps
from loopscale.train.summary import summary_of
from loopscale.train.trainer import Trainer

GROWN: tuple[Any, ...] = ((0.0, 1), (0.5, 2))
SWITCHES: list[dict[str, Any]] = [
    {"model": {"residual_scale": "1/R"}},
    {"model": {"pass_norms": True, "pass_attention": "low-rank", "pass_router": True, "random_recurrence": "uniform"}},
    {"model": {"pass_attention": "full", "pass_router": True, "balance": "pass"}},
    {"model": {"injection": "gated"}, "schedule": {"recurrence": GROWN}},
    {"model": {"injection": "diagonal", "backprop_passes": 1}},
    {"model": {"injection": "normed", "residual_init": "zero"}},
    {"model": {"exit_gate": True}},
]


@pytest.mark.parametrize("sections", SWITCHES, ids=str)
def test_a_run_with_a_switch_resumes_bit_for_bit_and_learns(
    text: Path, tmp_path: Path, sections: dict[str, Any]
) -> None:
    run = {"tokens": 12 * 4 * 32, "log_every": 100, "checkpoint_every": 5}
    settings = small(text, **sections, run=run)
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


def test_the_recurrence_follows_the_schedule_and_its_flops_are_counted(text: Path, tmp_path: Path) -> None:
    settings = small(text, model={"recurrence": 4}, schedule={"recurrence": ((0, 1), (0.75, 4))})
    trainer = Trainer(settings, tmp_path / "run")
    passes = []
    trainer.model.model.loop[-1].register_forward_hook(lambda *_: passes.append(trainer.step))
    trainer.train(until=32)
    assert [passes.count(step) for step in range(32)] == [1] * 30 + [4] * 2
    flops = [real_flops_per_token(small(text, model={"recurrence": R}), with_recurrence(trainer, R)) for R in (1, 4)]
    assert real_flops_per_token(settings, trainer.model_config) == pytest.approx(0.75 * flops[0] + 0.25 * flops[1])
    schedule = settings.schedule.model_copy(update={"kind": "wsd"})
    assert shared_steps(schedule, 40) == 30  # a longer run grows later


def with_recurrence(trainer: Trainer, recurrence: int) -> Any:
    changed = copy(trainer.model_config)
    changed.recurrence = recurrence
    return changed


@pytest.mark.parametrize(
    ("recurrence", "said"),
    [
        (((0.1, 1),), "should begin at 0"),
        (((0.0, 1), (0.5, 2), (0.5, 1)), "should begin at 0, rise"),
        (((0.0, 1), (0.5, 3)), "goes up to 3, and the model's 'recurrence' is 2"),
    ],
)
def test_a_schedule_of_the_recurrence_that_cannot_be_is_refused(text: Path, recurrence: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        small(text, schedule={"recurrence": recurrence})


def test_expected_draws_add_up_and_keep_their_mean(text: Path) -> None:
    for kind, mean in (("uniform", 2.5), ("poisson", 4.0)):
        settings = small(text, model={"recurrence": 4, "random_recurrence": kind})
        shares = recurrence_shares(settings, settings.model.config(64, 32))
        assert sum(shares.values()) == pytest.approx(1)
        assert sum(passes * share for passes, share in shares.items()) == pytest.approx(mean)


def test_a_run_whose_passes_grow_counts_the_compute_of_each_stage(text: Path) -> None:
    grown = small(text, model={"recurrence": 3}, schedule={"recurrence": ((0.0, 1), (0.5, 3))})
    model = grown.model.config(64, 32)
    half = round(0.5 * grown.steps) / grown.steps
    flops = [float(model.to_architecture().train_flops_per_token(passes)) for passes in (1, 3)]
    counted = summary_of(grown, model, grown.steps, 2.0)
    assert counted["training_flops"] == pytest.approx(
        grown.steps * grown.step_tokens * (half * flops[0] + (1 - half) * flops[1])
    )
