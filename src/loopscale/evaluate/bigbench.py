"""The suite ``bigbench``: tasks behind BIG-Bench Hard from BIG-bench's own files, with the paper's shots and metric.

Nothing of BIG-bench ships. Its task files come in the PyPI package ``bigbench`` (Apache-2.0, an archive of 358 MB).
The prompts are BIG-bench's, not BBH's reworded ones, so scores are near those of ``leaderboard_bbh`` and not the same.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loopscale.core.errors import InputError, nearest
from loopscale.core.files import TEXT_BYTES, cache_folder, make_folder, write_text

NAME = "bigbench"
SOURCE = "LOOPSCALE_BIGBENCH"
"""The environment variable that names the source archive or a folder unpacked from it."""
SHOTS = 3
ITEMS = 250
"""Items of a task, as many as BBH has."""
METRIC = "acc_norm,none"
TASKS = {
    "causal_judgement": "causal_judgment",
    "date_understanding": "date_understanding",
    "disambiguation_qa": "disambiguation_qa",
    "formal_fallacies": "formal_fallacies_syllogisms_negation",
    "geometric_shapes": "geometric_shapes",
    "hyperbaton": "hyperbaton",
    "logical_deduction_three_objects": "logical_deduction/three_objects",
    "logical_deduction_five_objects": "logical_deduction/five_objects",
    "logical_deduction_seven_objects": "logical_deduction/seven_objects",
    "movie_recommendation": "movie_recommendation",
    "navigate": "navigate",
    "penguins_in_a_table": "penguins_in_a_table",
    "reasoning_about_colored_objects": "reasoning_about_colored_objects",
    "ruin_names": "ruin_names",
    "salient_translation_error_detection": "salient_translation_error_detection",
    "snarks": "snarks",
    "sports_understanding": "sports_understanding",
    "temporal_sequences": "temporal_sequences",
    "tracking_shuffled_objects_three_objects": "tracking_shuffled_objects/three_objects",
    "tracking_shuffled_objects_five_objects": "tracking_shuffled_objects/five_objects",
    "tracking_shuffled_objects_seven_objects": "tracking_shuffled_objects/seven_objects",
}
"""BBH's name of a task, and its folder in BIG-bench: those with choices, as the paper's metric needs."""
LEFT_OUT = {
    "boolean_expressions": "BIG-bench makes it by code",
    "web_of_lies": "BIG-bench makes it by code",
    "object_counting": "BIG-bench has no choices for it",
}
"""Of the 24 tasks of lm-eval's leaderboard_bbh; these need its data from the hub."""


def task_folder(names: tuple[str, ...] = tuple(TASKS)) -> Path:
    """Return a folder of lm-eval tasks made from BIG-bench's files, written where it is missing."""
    folder = cache_folder() / NAME
    missing = [name for name in names if not (folder / f"{name}.yaml").is_file()]
    if missing:
        make_folder(folder)
        for name, content in _contents(missing):
            _write(folder, name, content)
    return folder


def known(name: str) -> str:
    """Return the task's name; refuse one that the suite does not have, with the reason where there is one."""
    if name in LEFT_OUT:
        raise InputError(f"bigbench has no {name}: {LEFT_OUT[name]}; lm-eval's leaderboard_bbh has it, from the hub")
    if name not in TASKS:
        raise InputError(f"bigbench has no task {name!r}{nearest(name, TASKS)}; choose from {', '.join(TASKS)}")
    return name


def _contents(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the content of each task's file, from an archive or a folder."""
    named = os.environ.get(SOURCE)
    if not named:
        raise InputError(
            "the data of bigbench are not here; get the source archive of the PyPI package bigbench (358 MB) and name "
            f"it, or the folder unpacked from it, in {SOURCE}"
        )
    source, paths = Path(named), {f"benchmark_tasks/{TASKS[name]}/task.json": name for name in names}
    if source.is_dir():
        for ending, name in paths.items():
            file = next(source.rglob(ending), None)
            if file is None:
                raise InputError(f"there is no {ending} in it", where=str(source))
            yield name, json.loads(file.read_text(encoding="utf-8"))
        return
    try:
        with tarfile.open(source) as archive:
            for member in archive:
                for ending, name in paths.items():
                    if member.isfile() and member.name.endswith(ending):
                        if member.size > TEXT_BYTES:
                            raise InputError(
                                f"{source}: {member.name} has more than the {TEXT_BYTES:,} bytes that are read"
                            )
                        content = archive.extractfile(member)
                        assert content is not None
                        yield name, json.load(content)
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"cannot be read as BIG-bench's archive ({error})", where=str(source)) from None


def _write(folder: Path, name: str, content: dict[str, Any]) -> None:
    """Write a task's items and its description for lm-eval; the first items are the examples of a prompt."""
    rows = [row for row in map(_row, content["examples"]) if row is not None]
    lead = str(content.get("task_prefix", "")).strip()
    files = {"train": rows[:SHOTS], "test": rows[SHOTS : SHOTS + ITEMS]}
    for split, part in files.items():
        write_text(folder / f"{name}.{split}.jsonl", "".join(json.dumps(row) + "\n" for row in part))
    paths = {split: str(folder / f"{name}.{split}.jsonl") for split in files}
    task = {
        "task": f"{NAME}_{name}",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": paths},
        "output_type": "multiple_choice",
        "test_split": "test",
        "fewshot_split": "train",
        "fewshot_config": {"sampler": "first_n"},
        "description": f"{lead}\n\n" if lead else "",
        "doc_to_text": "Q: {{text}}\nA:",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in ("acc", "acc_norm")
        ],
        "metadata": {"version": 1.0},
    }
    write_text(folder / f"{name}.yaml", json.dumps(task, indent=1) + "\n")  # JSON is YAML


def _row(example: dict[str, Any]) -> dict[str, Any] | None:
    """Return an item with one right choice; others are left out."""
    scores = example.get("target_scores") or {}
    best = [choice for choice, score in scores.items() if score == max(scores.values())]
    if len(scores) < 2 or len(best) != 1:
        return None
    return {"text": example["input"], "choices": list(scores), "answer": list(scores).index(best[0])}
