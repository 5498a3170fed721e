"""One small trained checkpoint for all tests here, made once even when several processes run them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import trained
from filelock import FileLock

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return the folder of a byte-level checkpoint trained at R = 3."""
    base = tmp_path_factory.getbasetemp()
    where = (base if worker_id == "master" else base.parent) / "trained"
    with FileLock(f"{where}.lock"):
        if not (where / "tokenizer.json").is_file():
            trained.train(where)
    return where


@pytest.fixture(scope="session")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the same model with random weights, large enough for passes to differ."""
    where = tmp_path_factory.mktemp("untrained")
    trained.save(trained.new_model(seed=3, initializer_range=0.3), where)
    return where
