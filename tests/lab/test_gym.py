"""Tasks of reasoning-gym: rows to train on, new problems to check, and a sentence where the library is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from loopscale.cli.verbs import cli
from loopscale.core.errors import InputError, MissingExtraError
from loopscale.lab.gym import GymTask, check, read_task
from loopscale.train.config import TrainConfig
from loopscale.train.trainer import train


class Sums(list[dict[str, Any]]):
    """Sums of two digits, with the interface of the library."""

    def __init__(self, size: int, seed: int, largest: int = 9) -> None:
        import random

        draw = random.Random(seed)
        pairs = [(draw.randint(0, largest), draw.randint(0, largest)) for _ in range(size)]
        super().__init__({"question": f"{a}+{b}=", "answer": str(a + b)} for a, b in pairs)

    def score_answer(self, answer: str, item: dict[str, Any]) -> float:
        return float(answer == item["answer"])


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the library, which the tests do not need."""
    module: Any = ModuleType("reasoning_gym")
    module.factory = SimpleNamespace(DATASETS={"sums": Sums})
    module.create_dataset = lambda name, **settings: Sums(**settings)
    monkeypatch.setitem(sys.modules, "reasoning_gym", module)


def test_rows_are_different_problems_and_say_where_they_come_from(tmp_path: Path, library: None) -> None:
    result = CliRunner().invoke(
        cli, ["lab", "gym", "sums", "--count", "40", "--set", "largest=3", "--out", str(tmp_path / "rows")]
    )
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in (tmp_path / "rows" / "rows.jsonl").read_text().splitlines()]
    assert len({row["prompt"] for row in rows}) == len(rows) <= 16
    assert all(eval(row["prompt"].strip("=\n")) == int(row["completion"]) for row in rows)
    task, prompts = read_task(tmp_path / "rows")
    assert task == GymTask("sums", {"largest": 3}, 0)
    assert prompts == {row["prompt"] for row in rows}


def test_a_trained_model_is_checked_on_problems_that_are_new(tmp_path: Path, library: None) -> None:
    GymTask("sums", {"largest": 60}).write(tmp_path / "rows", 60)
    data = {"files": [str(tmp_path / "rows" / "rows.jsonl")], "format": "completion", "context": 16, "validation": 0.1}
    model = {"width": 16, "layers": 1, "edge_layers": 0, "head_size": 8, "recurrence": 2}
    config = {"model": model, "data": {**data, "folder": str(tmp_path / "store")}, "run": {"tokens": 256, "batch": 4}}
    train(TrainConfig.from_dict(config), tmp_path / "run")
    result = check(tmp_path / "rows", tmp_path / "run", count=5)
    assert result["problems"] == 5
    assert 0 <= result["accuracy"] <= 1
    assert result["recurrence"] == 2


def test_an_unknown_task_or_setting_is_refused(library: None) -> None:
    with pytest.raises(InputError, match="did you mean 'sums'"):
        GymTask("sum", {}).problems(3, 0)
    with pytest.raises(InputError, match="does not take these settings"):
        GymTask("sums", {"smallest": 3}).problems(3, 0)


def test_without_the_library_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(MissingExtraError, match="loopscale\\[gym\\]"):
        GymTask("chain_sum", {}).problems(3, 0)


def test_the_library_itself_has_problems_and_a_checker(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="loopscale[gym] is not installed")
    task = GymTask("chain_sum", {"max_terms": 2, "max_digits": 1})
    assert task.write(tmp_path, 50) > 10
    for checker, item in task.new_problems(read_task(tmp_path)[1], 5):
        assert checker.score_answer(item["answer"], item) == 1.0
