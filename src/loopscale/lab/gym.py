"""Tasks of reasoning-gym: text with one answer at its end, as rows of prompt and completion, and its own checkers.

The library has a hundred families of problems with exact checkers. Their rows train a model with
``[data] format = "completion"``; the checker then reads what the model generates after new prompts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from loopscale.core.errors import InputError, nearest, require, shown
from loopscale.core.files import read_json, write_json, write_text
from loopscale.core.numerics import wilson_interval
from loopscale.lab.training import load
from loopscale.train import run_dir

ROWS, SOURCE = "rows.jsonl", "source.json"
CHECK_SEED = 1_000_003
"""Added to the seed of training for the problems that a model is checked on."""


@dataclass(frozen=True)
class GymTask:
    """A family of problems with its settings."""

    name: str
    settings: Mapping[str, Any]
    """What makes it easier or harder, like ``{"max_terms": 3}``."""
    seed: int = 0

    def problems(self, count: int, seed: int) -> Any:
        """Return problems of the library: items with "question" and "answer", and ``score_answer``."""
        library = require("reasoning_gym", "gym", "a task of reasoning-gym")
        tasks = library.factory.DATASETS
        if self.name not in tasks:
            raise InputError(f"reasoning-gym has no task {shown(self.name)}{nearest(self.name, tasks)}")
        try:
            return library.create_dataset(self.name, size=count, seed=seed, **self.settings)
        except (TypeError, ValueError, AssertionError) as error:
            raise InputError(
                f"reasoning-gym's {self.name!r} does not take these settings: {error}; see its documentation"
            ) from error

    def write(self, folder: Path, count: int) -> int:
        """Write different problems as rows of prompt and completion; return how many there are."""
        rows = {item["question"]: item["answer"] for item in self.problems(count, self.seed)}
        lines = [json.dumps({"prompt": f"{question}\n", "completion": answer}) for question, answer in rows.items()]
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / ROWS, "".join(f"{line}\n" for line in lines))
        write_json(folder / SOURCE, {"task": self.name, "settings": dict(self.settings), "seed": self.seed})
        return len(rows)

    def new_problems(self, seen: set[str], count: int) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield the checker and a problem that is not among those of training, up to ``count`` times."""
        dataset = self.problems(4 * count, self.seed + CHECK_SEED)
        unseen = (item for item in dataset if f"{item['question']}\n" not in seen)
        for _, item in zip(range(count), unseen, strict=False):
            yield dataset, item


def read_task(folder: Path) -> tuple[GymTask, set[str]]:
    """Return the task whose rows a folder holds, and their prompts."""
    if not (folder / SOURCE).is_file():
        raise InputError(
            f"{folder}: no rows of `loopscale lab gym`: it has no {SOURCE}; write them with that command first"
        )
    source: Any = read_json(folder / SOURCE)
    prompts = {json.loads(line)["prompt"] for line in (folder / ROWS).read_text(encoding="utf-8").splitlines()}
    return GymTask(source["task"], source["settings"], source["seed"]), prompts


@torch.no_grad()
def check(folder: Path, model: str | Path, recurrence: int | None = None, count: int = 100) -> dict[str, Any]:
    """Let a model answer new problems of the task in ``folder`` at R passes, and return its score by the checker."""
    from transformers import AutoTokenizer

    task, prompts = read_task(folder)
    loaded: Any = load(model)
    tokenizer: Any = AutoTokenizer.from_pretrained(str(run_dir.model_of(model)))
    R = recurrence or loaded.config.recurrence
    points, right, asked = 0.0, 0, 0
    for checker, item in task.new_problems(prompts, count):
        ids = tokenizer(f"{item['question']}\n", return_tensors="pt", add_special_tokens=False).input_ids
        most = len(tokenizer(item["answer"], add_special_tokens=False).input_ids) + 1
        output = loaded.generate(
            ids, max_new_tokens=most, do_sample=False, recurrence=R, pad_token_id=tokenizer.eos_token_id
        )
        answer = tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True).strip()
        points += checker.score_answer(answer, item)
        right += answer == item["answer"]
        asked += 1
    if not asked:
        raise InputError(f"every problem of {task.name!r} with these settings was in training; make it harder")
    share = right / asked
    return {
        "task": task.name,
        "settings": dict(task.settings),
        "recurrence": R,
        "problems": asked,
        "accuracy": share,
        "interval": list(wilson_interval(share, asked)),
        "score": points / asked,
    }
