"""Small runs that the tests of training share."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from loopscale.train.config import TrainConfig
from loopscale.train.metrics import read_metrics

WORDS = ("loop", "the", "state", "again", "and", "expert", "of", "a", "small", "model", "reads", "its", "own", "words")


def corpus(folder: Path, documents: int = 60) -> Path:
    """Write a text of many documents, one file each, and return its folder."""
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for place in range(documents):
        text = " ".join(draw.choice(WORDS) for _ in range(60))
        (folder / f"{place}.txt").write_text(f"{place} {text}\n")
    return folder


def small(text: Path, **sections: dict[str, Any]) -> TrainConfig:
    """Return a run of forty quick steps on the files of ``text``."""
    data = {
        "model": {"width": 16, "layers": 3, "head_size": 8, "experts": 2, "recurrence": 2},
        "data": {"files": [str(text)], "context": 32, "validation": 0.2, "folder": str(text.parent / "tokens")},
        "optimizer": {"learning_rate": 0.01},
        "schedule": {"warmup_steps": 4},
        "run": {"tokens": 40 * 4 * 32, "batch": 4, "log_every": 1, "checkpoint_every": 3, "validation_sequences": 8},
    }
    for name, values in sections.items():
        data.setdefault(name, {}).update(values)
    return TrainConfig.from_dict(data)


def losses(out: Path) -> list[float]:
    """Return the loss of every step that a run has reported."""
    return [row["loss"] for row in read_metrics(out / "metrics.jsonl")]
