"""The results store: a folder with one small file for each (checkpoint, task, recurrence, settings)."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from loopscale.errors import InputError
from loopscale.evaluate.checkpoints import Model
from loopscale.files import Fields, read_json, versioned, write_json

SCHEMA = 1


@dataclass(frozen=True)
class Key:
    """Everything that a result depends on; a change of any part is another result."""

    checkpoint: str
    task: str
    recurrence: int
    settings: Mapping[str, Any]
    """Backend, precision, shots, seeds, versions: plain values only."""

    @property
    def digest(self) -> str:
        """A hash of all of it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Score:
    """A metric's value and lm-eval's standard error, where it has one."""

    value: float
    stderr: float | None = None
    higher_is_better: bool | None = None


@dataclass(frozen=True)
class Result:
    """What was measured for one key."""

    key: Key
    scores: Mapping[str, Score]
    """By metric and filter, as lm-eval writes them: ``acc_norm,none``."""
    samples: int
    seconds: float
    mean_passes: float | None = None
    """With early exit: passes that a scored token used."""
    subtasks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of a group of tasks: the metrics of each."""

    @property
    def passes(self) -> float:
        """Passes to count the compute of: the recurrence, or the mean with early exit."""
        return float(self.key.recurrence) if self.mean_passes is None else self.mean_passes

    def primary_metric(self, metric: str | None) -> tuple[str, Score] | None:
        """Return the named metric, or the main metric of the task."""
        for name in (metric,) if metric else (*PREFERRED, *self.scores):
            for full, score in self.scores.items():
                if name in (full, full.partition(",")[0]):
                    return full, score
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {"kind": "evaluation", "schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, data: object, where: str) -> Result:
        """Read what :meth:`to_dict` wrote."""
        fields = versioned(data, where, "evaluation", SCHEMA)
        scores = fields.object("scores")
        result = cls(
            key=_key(fields.object("key")),
            scores={name: _score(scores.object(name)) for name in scores.names()},
            samples=fields.take("samples", int),
            seconds=fields.take("seconds", float),
            mean_passes=fields.optional("mean_passes", float),
            subtasks=fields.take("subtasks", dict, {}),
        )
        fields.done()
        return result


PREFERRED = ("acc_norm", "acc", "exact_match", "f1")


class Store:
    """A folder of results. Each is written whole or not at all, so that a kill at any moment loses none."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def find(self, key: Key) -> Result | None:
        """Return the result of a key, or None where there is none yet."""
        path = self._path(key)
        return Result.from_dict(read_json(path), str(path)) if path.is_file() else None

    def add(self, result: Result) -> None:
        """Keep a result; one that is not finite is refused, as it measures nothing."""
        for name, score in result.scores.items():
            if not math.isfinite(score.value) or not math.isfinite(score.stderr or 0.0):
                raise InputError(
                    f"{result.key.task} at R = {result.key.recurrence}: {name} is {score.value:g}; the model's outputs "
                    "are not finite or overflow, so no result is kept; evaluate in float32, or check the training"
                )
        path = self._path(result.key)
        _make(path.parent)
        write_json(path, result.to_dict())

    def add_model(self, model: Model) -> Model:
        """Keep what tables need to know of a checkpoint; return it with the training tokens, if they were known."""
        path = self.folder / model.checkpoint[:16] / "model.json"
        known = Model.from_dict(read_json(path), str(path)) if path.is_file() else None
        if known is not None and model.training_tokens is None:
            model = replace(model, training_tokens=known.training_tokens)
        if model != known:
            _make(path.parent)
            write_json(path, model.to_dict())
        return model

    def models(self) -> list[Model]:
        """Return every checkpoint that was evaluated."""
        return [Model.from_dict(read_json(path), str(path)) for path in sorted(self.folder.glob("*/model.json"))]

    def results(self) -> Iterator[Result]:
        """Yield every result."""
        for path in sorted(self.folder.glob("*/*.result.json")):
            yield Result.from_dict(read_json(path), str(path))

    def _path(self, key: Key) -> Path:
        task = re.sub(r"[^\w.-]+", "_", key.task)[:80]
        return self.folder / key.checkpoint[:16] / f"{task}.R{key.recurrence}.{key.digest}.result.json"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: the results folder cannot be made: {error.strerror}") from None


def _key(fields: Fields) -> Key:
    key = Key(
        fields.take("checkpoint", str),
        fields.take("task", str),
        fields.take("recurrence", int),
        fields.take("settings", dict),
    )
    fields.done()
    return key


def _score(fields: Fields) -> Score:
    score = Score(
        fields.take("value", float), fields.optional("stderr", float), fields.optional("higher_is_better", bool)
    )
    fields.done()
    return score
