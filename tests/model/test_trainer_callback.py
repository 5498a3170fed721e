"""Hugging Face's Trainer: experts are balanced, and parts of a batch add up to its gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from looped_models import model, same, tokens
from transformers import Trainer, TrainingArguments

from loopscale.model import Trace
from loopscale.model.balancing import BalanceCallback, update_biases


def biases(made: torch.nn.Module) -> list[torch.Tensor]:
    return [buffer.clone() for name, buffer in made.named_buffers() if name.endswith("e_score_correction_bias")]


def test_hugging_faces_trainer_updates_the_biases_once_for_each_step(tmp_path: Path) -> None:
    made = model(dtype=torch.float32)
    callback = BalanceCallback(made, rate=0.25)
    updates: list[Trace] = []
    update, before = callback.update, biases(made)
    callback.update = lambda: (updates.append(callback.counts), update())  # type: ignore[method-assign]
    rows = [{"input_ids": row, "labels": row} for row in tokens(16, 8)]
    arguments = TrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    Trainer(made, arguments, train_dataset=rows, callbacks=[callback]).train()
    assert len(updates) == 3
    # A step has two batches of two sequences of eight tokens, and two experts for each token.
    assert {int(counts.prelude.sum()) for counts in updates} == {2 * 2 * 8 * 2}
    assert not any(torch.equal(one, other) for one, other in zip(before, biases(made), strict=True))
    assert not made._forward_hooks


def test_any_loop_can_balance_with_the_same_three_calls() -> None:
    made, twin = model().train(), model().train()
    callback = BalanceCallback(made, rate=0.25)
    callback.start()
    totals = [made(tokens(2, 9, seed=seed), recurrence=seed).expert_counts for seed in (1, 3)]
    made.eval()
    made(tokens(2, 9))  # evaluation does not count
    callback.update()
    callback.stop()
    loop = totals[1].loop.clone()
    loop[:1] += totals[0].loop
    update_biases(twin, Trace(totals[0].prelude + totals[1].prelude, loop, totals[0].coda + totals[1].coda), rate=0.25)
    for ours, theirs in zip(biases(made), biases(twin), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "options",
    [{}, {"router_z_loss_coef": 1.0}, {"exit_gate": True, "exit_entropy_coef": 0.5}, {"loop_loss_weights": [0.5, 1.0]}],
    ids=["plain", "z-loss", "exit gate", "every pass"],
)
def test_gradient_accumulation_gives_the_gradient_of_the_whole_batch(options: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"input_ids": row, "labels": row} for row in tokens(8, 9)]
    trained = []
    for parts in (1, 4):
        made = model(**{"router_z_loss_coef": 0.0, **options})
        arguments = TrainingArguments(
            str(tmp_path / str(parts)),
            per_device_train_batch_size=8 // parts,
            gradient_accumulation_steps=parts,
            max_steps=1,
            learning_rate=0.1,
            lr_scheduler_type="constant",
            optim="sgd",
            max_grad_norm=0.0,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
        )
        Trainer(made, arguments, train_dataset=rows).train()
        trained.append(made)
    untrained = model(**options)
    for (name, whole), part, start in zip(
        trained[0].named_parameters(), trained[1].parameters(), untrained.parameters(), strict=True
    ):
        same(part, whole, tolerance=1e-6)
        assert not torch.equal(whole, start), name


@pytest.mark.parametrize("options", [{}, {"loop_loss_weights": [0.5, 1.0]}, {"exit_gate": True}])
def test_losses_of_parts_add_up_when_the_logits_are_not_stored(options: dict[str, Any]) -> None:
    made, ids = model(router_z_loss_coef=0.5, **options).train(), tokens(4, 9)
    labels = ids.clone()
    labels[0, 3:] = -100  # parts with different numbers of targets
    targets = int((labels[:, 1:] != -100).sum())
    for output_logits in (False, True):
        part_losses = [
            made(ids[rows], labels=labels[rows], num_items_in_batch=targets, output_logits=output_logits)
            for rows in (slice(0, 1), slice(1, 4))
        ]
        whole = made(ids, labels=labels, output_logits=output_logits)
        for name in ("cross_entropy", "exit_loss"):
            if whole.get(name) is not None:
                same(sum(part[name] for part in part_losses).double(), whole[name].double(), tolerance=1e-5)
        one_part = made(ids, labels=labels, num_items_in_batch=targets, output_logits=output_logits)
        same(one_part.loss.double(), whole.loss.double(), tolerance=1e-5)
