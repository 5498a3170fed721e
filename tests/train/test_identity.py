"""Which settings make two runs different: one answer for a run's folder and for a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loopscale.core.errors import InputError
from loopscale.train.config import TrainConfig
from loopscale.train.identity import first_difference
from loopscale.train.run_dir import open_run

CONFIG = TrainConfig.from_dict({"model": {"recurrence": 2}, "run": {"tokens": "1M"}})


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"processes": 4}},
        {"parallel": {"replicas": 2}},
        {"resources": {"gpus": 4}},
        {"run": {"tokens": 2e6, "log_every": 3, "keep": 1, "track": ("tensorboard",)}},
    ],
)
def test_what_may_change_when_a_run_resumes_makes_no_other_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    other = CONFIG.changed(**changes)
    assert first_difference(CONFIG, other) is None
    assert first_difference(CONFIG, other, measured_alike=True) is None
    open_run(tmp_path, CONFIG, rank=0)
    open_run(tmp_path, other, rank=0)


def test_the_first_setting_that_differs_is_named_with_both_values(tmp_path: Path) -> None:
    other = CONFIG.changed(model={"recurrence": 4}, run={"seed": 1})
    first = first_difference(CONFIG, other)
    assert first is not None
    assert (first.section, first.name, first.stored, first.wanted) == ("model", "recurrence", 2, 4)
    open_run(tmp_path, CONFIG, rank=0)
    with pytest.raises(InputError, match=r"its \[model\] recurrence is 2, and this run's is 4"):
        open_run(tmp_path, other, rank=0)


def test_losses_of_a_sweep_must_also_be_measured_alike() -> None:
    other = CONFIG.changed(run={"validation_sequences": 64})
    assert first_difference(CONFIG, other) is None
    first = first_difference(CONFIG, other, measured_alike=True)
    assert first is not None
    assert first.name == "validation_sequences"
