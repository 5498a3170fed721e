"""Data from a Python function, in ten lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loopscale.core.errors import InputError
from loopscale.model import LoopedMoEForCausalLM
from loopscale.train.config import TrainConfig
from loopscale.train.data.drawn import DrawnStore
from loopscale.train.data.labels import LabelledBatches
from loopscale.train.metrics import read_metrics
from loopscale.train.trainer import Trainer, train


def counting(rng: np.random.Generator, count: int, context: int) -> Any:
    """Rows that count up from a random number."""
    return (rng.integers(0, 16, (count, 1)) + np.arange(context)) % 16


DATA = DrawnStore.of("counting", counting, vocabulary=17)
CONFIG = TrainConfig.from_dict({
    "model": {"width": 16, "layers": 3, "head_size": 8, "recurrence": 2},
    "data": {"context": 12},
    "optimizer": {"learning_rate": 0.02},
    "schedule": {"warmup_steps": 4},
    "run": {"tokens": 60 * 8 * 12, "batch": 8, "log_every": 1, "checkpoint_every": 20, "validation_sequences": 16},
})  # fmt: skip


def test_a_function_is_learnt_and_the_model_loads(tmp_path: Path) -> None:
    summary = train(CONFIG, tmp_path / "run", data=DATA)
    assert summary is not None
    losses = [row["loss"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert summary["validation_loss"] < 0.5 * losses[0]
    model = LoopedMoEForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert model.config.vocab_size >= 17


def test_a_run_on_a_function_resumes_bit_for_bit(tmp_path: Path) -> None:
    short = CONFIG.changed(run={"tokens": 20 * 8 * 12})
    train(short, tmp_path / "whole", data=DATA)
    Trainer(short, tmp_path / "stopped", data=DATA).train(until=7)
    train(short, tmp_path / "stopped", data=DATA)
    whole, stopped = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("whole", "stopped"))
    assert [row["loss"] for row in whole] == [row["loss"] for row in stopped]


def test_the_processes_of_a_run_share_a_step() -> None:
    batches = LabelledBatches(DATA, split="train", batch=8, context=12, seed=0)
    whole = batches.batch(3)
    parts = [batches.batch(3, rank=rank, ranks=2).ids for rank in range(2)]
    assert np.array_equal(whole.ids, np.concatenate(parts))
    assert not np.array_equal(whole.ids, batches.batch(4).ids)


def test_labels_say_what_is_a_target() -> None:
    def last_only(rng: np.random.Generator, count: int, context: int) -> Any:
        ids = counting(rng, count, context - 2)
        labels = np.full_like(ids, -100)
        labels[:, -1] = ids[:, -1]
        return ids, labels

    batch = LabelledBatches(DrawnStore.of("last", last_only, 17), split="train", batch=4, context=12, seed=0).batch(0)
    assert (batch.labels >= 0).sum() == 4
    assert batch.ids.shape == (4, 12)


@pytest.mark.parametrize(
    ("draw", "problem"),
    [
        (lambda rng, count, context: np.zeros((count, context + 1)), "at most 12 tokens"),
        (lambda rng, count, context: np.full((count, context), 40), "outside of 0 to 16"),
        (lambda rng, count, context: [["a"]], "no rows of whole numbers"),
    ],
)
def test_what_a_function_should_not_return_is_refused(draw: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        LabelledBatches(DrawnStore.of("bad", draw, 17), split="train", batch=4, context=12, seed=0).batch(0)


def test_other_data_do_not_resume_a_run(tmp_path: Path) -> None:
    short = CONFIG.changed(run={"tokens": 10 * 8 * 12})
    first = Trainer(short, tmp_path / "run", data=DATA)
    first.train(until=5)
    first.save()
    other = Trainer(short, tmp_path / "run", data=DrawnStore.of("another", counting, vocabulary=17))
    with pytest.raises(InputError, match="data"):
        other.resume()
    assert torch.is_tensor(next(first.model.parameters()))
