"""A checkpoint as results know it: by the contents of its files, and by what it costs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from loopscale.architecture import Architecture, read_config
from loopscale.errors import InputError
from loopscale.files import checksum, versioned
from loopscale.quantities import format_count

SCHEMA = 1
WEIGHTS = ("*.safetensors", "*.bin")
TOKENIZER = ("tokenizer*", "vocab*", "merges*", "special_tokens_map.json", "*.model")


@dataclass(frozen=True)
class Model:
    """What tables need to know of an evaluated checkpoint."""

    checkpoint: str
    """Hash of weights, config and tokenizer."""
    name: str
    architecture: Architecture
    training_tokens: float | None = None
    size: str = ""
    """The size's name in the sweep that trained it."""
    run: str = ""
    """The sweep's run that it is a point of."""
    validation_loss: float | None = None
    """The loss at the end of its training."""

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
    def from_dict(cls, data: object, where: str) -> Model:
        """Read what :meth:`to_dict` wrote."""
        opened = versioned(data, where, "evaluated-model", SCHEMA)
        model = cls(
            opened.take("checkpoint", str),
            opened.take("name", str),
            Architecture.from_dict(opened.take("architecture", dict), f"{where}: architecture"),
            opened.optional("training_tokens", float),
            opened.take("size", str, ""),
            opened.take("run", str, ""),
            opened.optional("validation_loss", float),
        )
        opened.done()
        return model


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


def read_checkpoint(folder: str | Path, tokenizer: str | None = None, tokens: float | None = None) -> Model:
    """Return the model of a checkpoint folder, without loading it.

    One that a run left in its folder has the run's name and its tokens; one of a sweep also its size and run.
    """
    from loopscale.train.run_dir import model_of, read_summary, run_of

    where = model_of(folder)
    if not where.is_dir():
        raise InputError(f"{folder}: no such checkpoint; give a folder that save_pretrained wrote")
    architecture = read_config(where)
    weights = _matching(where, WEIGHTS)
    if not weights:
        raise InputError(
            f"{folder}: no weights there ({' or '.join(WEIGHTS)}); give a folder that save_pretrained wrote"
        )
    parts = [*weights, where / "config.json", *_matching(Path(tokenizer or where), TOKENIZER)]
    run = run_of(where)
    summary = (None if run is None else read_summary(run)) or {}
    trained = summary.get("tokens") if tokens is None else tokens
    return Model(
        contents_hash(parts),
        _name(architecture, run, summary),
        architecture,
        trained,
        summary.get("size", ""),
        summary.get("run", ""),
        summary.get("validation_loss"),
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
            raise InputError(f"{file}: cannot be read: {error.strerror}") from None
    return whole.hexdigest()


def _matching(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})
