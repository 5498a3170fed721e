"""The results store: a folder with one small file for each (checkpoint, task, recurrence, settings).

A checkpoint is known by the contents of its files, and by what it costs.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from loopscale.architecture import Architecture, read_config
from loopscale.core.errors import InputError
from loopscale.core.files import checksum, make_folder, read_json, write_json
from loopscale.core.quantities import format_count
from loopscale.core.records import file_of
from loopscale.core.schemas import parse

SCHEMA = 1
WEIGHTS = ("*.safetensors", "*.bin")
TOKENIZER = ("tokenizer*", "vocab*", "merges*", "special_tokens_map.json", "*.model")


@dataclass(frozen=True)
class Key:
    """Everything that a result depends on; a change of any part is another result."""

    checkpoint: str
    task: str
    recurrence: Annotated[int, Field(ge=1)]
    settings: Mapping[str, Any]
    """Backend, precision, shots, seeds, versions: plain values only."""
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

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
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True)
class Result:
    """What was measured for one key."""

    key: Key
    scores: Mapping[str, Score]
    """By metric and filter, as lm-eval writes them: ``acc_norm,none``."""
    samples: Annotated[int, Field(ge=0)]
    seconds: Annotated[float, Field(ge=0)]
    mean_passes: Annotated[float, Field(ge=0)] | None = None
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
        """Read what ``to_dict`` wrote."""
        return cls(**dict(parse(ResultFile, data, where)))


ResultFile = file_of(Result, "evaluation", SCHEMA, overrides={"subtasks": dict[str, dict[str, Any]]})


@dataclass(frozen=True)
class EvaluatedModel:
    """What tables need to know of an evaluated checkpoint."""

    checkpoint: str
    """Hash of weights, config and tokenizer."""
    name: str
    architecture: Architecture
    training_tokens: Annotated[float, Field(gt=0)] | None = None
    size: str = ""
    """The size's name in the sweep that trained it."""
    run: str = ""
    """The sweep's run that it is a point of."""
    validation_loss: float | None = None
    """The loss at the end of its training."""
    random_recurrence: bool = False
    """Whether its passes were drawn at random in training."""

    @property
    def training_flops(self) -> float | None:
        """The paper's training compute, 6 N_unroll D at the recurrence that the config states; None if D is unknown."""
        if self.training_tokens is None:
            return None
        return float(self.architecture.train_flops_per_token()) * self.training_tokens

    def inference_flops(self, passes: float) -> float:
        """Return the paper's inference compute of a token, 2 N_unroll; ``passes`` may be a mean."""
        return float(self.architecture.inference_flops_per_token([passes])[0])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": "evaluated-model", "schema": SCHEMA, **own, "architecture": self.architecture.to_dict()}

    @classmethod
    def from_dict(cls, data: object, where: str) -> EvaluatedModel:
        """Read what ``to_dict`` wrote."""
        file = dict(parse(ModelFile, data, where))
        return cls(**file | {"architecture": Architecture.from_dict(file["architecture"], f"{where}: architecture")})


ModelFile = file_of(EvaluatedModel, "evaluated-model", SCHEMA, overrides={"architecture": dict[str, Any]})


PREFERRED = ("acc_norm", "acc", "exact_match", "f1")


class ResultStore:
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
        make_folder(path.parent)
        write_json(path, result.to_dict())

    def add_model(self, model: EvaluatedModel) -> EvaluatedModel:
        """Keep what tables need to know of a checkpoint; return it with the training tokens, if they were known."""
        path = self.folder / model.checkpoint[:16] / "model.json"
        known = EvaluatedModel.from_dict(read_json(path), str(path)) if path.is_file() else None
        if known is not None and model.training_tokens is None:
            model = replace(model, training_tokens=known.training_tokens)
        if model != known:
            make_folder(path.parent)
            write_json(path, model.to_dict())
        return model

    def models(self) -> list[EvaluatedModel]:
        """Return every checkpoint that was evaluated."""
        return [
            EvaluatedModel.from_dict(read_json(path), str(path)) for path in sorted(self.folder.glob("*/model.json"))
        ]

    def results(self) -> Iterator[Result]:
        """Yield every result."""
        for path in sorted(self.folder.glob("*/*.result.json")):
            yield Result.from_dict(read_json(path), str(path))

    def _path(self, key: Key) -> Path:
        task = re.sub(r"[^\w.-]+", "_", key.task)[:80]
        return self.folder / key.checkpoint[:16] / f"{task}.R{key.recurrence}.{key.digest}.result.json"


def kept_models(path: str | Path) -> list[Path] | None:
    """Return the folders of the models that a sweep has kept, in its order; None if ``path`` is not a sweep's file."""
    from loopscale.sweep.spec import read_sweep, shipped_sweeps
    from loopscale.sweep.store import run_folder

    if Path(path).suffix != ".toml" and str(path) not in shipped_sweeps():
        return None
    sweep = read_sweep(path)
    points = [run_folder(sweep.results, run.key) / f"D{tokens}" for run in sweep.runs for tokens in run.points]
    kept = [point for point in points if (point / "model" / "config.json").is_file()]
    if not kept:
        raise InputError(
            f"{path}: no model of this sweep is kept in {sweep.results}; set keep_models = true in [sweep], then run it"
        )
    return kept


def read_checkpoint(folder: str | Path, tokenizer: str | None = None, tokens: float | None = None) -> EvaluatedModel:
    """Return the model of a checkpoint folder, without loading it.

    One that a run left in its folder has the run's name and its tokens; one of a sweep also its size and run.
    """
    from loopscale.train.run_dir import model_of, read_summary, run_of

    where = model_of(folder)
    if not where.is_dir():
        raise InputError("no such checkpoint", where=str(folder), remedy="give a folder that save_pretrained wrote")
    architecture = read_config(where)
    config: Any = read_json(where / "config.json")
    weights = _matching(where, WEIGHTS)
    if not weights:
        raise InputError(
            f"{folder}: no weights there ({' or '.join(WEIGHTS)}); give a folder that save_pretrained wrote"
        )
    parts = [*weights, where / "config.json", *_matching(Path(tokenizer or where), TOKENIZER)]
    run = run_of(where)
    summary = (None if run is None else read_summary(run)) or {}
    task = summary.get("config", {}).get("data", {}).get("task")
    if task is not None:
        raise InputError(
            f"{folder}: this model was trained on the task {task!r} and reads no text; "
            "score it with `loopscale lab score`"
        )
    trained = summary.get("tokens") if tokens is None else tokens
    return EvaluatedModel(
        contents_hash(parts),
        _name(architecture, run, summary),
        architecture,
        trained,
        summary.get("size", ""),
        summary.get("run", ""),
        summary.get("validation_loss"),
        config.get("random_recurrence") is not None,
    )


def _name(architecture: Architecture, run: Path | None, summary: dict[str, Any]) -> str:
    """Return a model's name: that of its run, and for a point of a sweep its tokens too."""
    if summary.get("run"):
        return f"{summary['run']}-D{format_count(summary['tokens'])}"
    return architecture.name if run is None else run.name


def contents_hash(files: Iterable[Path]) -> str:
    """Return one hash of the files' names and contents."""
    whole = hashlib.sha256()
    for file in files:
        try:
            whole.update(f"{file.name}:{checksum(file)}\n".encode())
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=str(file)) from None
    return whole.hexdigest()


def _matching(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})
