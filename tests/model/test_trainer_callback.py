"""Experts are balanced under Hugging Face's Trainer and under any loop."""

from __future__ import annotations

from pathlib import Path

import torch
from looped_models import model, tokens
from transformers import Trainer, TrainingArguments

from loopscale.model.balancing import BalanceCallback, update_biases
from loopscale.model.forward import Trace


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
