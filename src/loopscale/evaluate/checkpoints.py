"""A checkpoint as results know it: by the contents of its files, and by what it costs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopscale.architecture import Architecture, read_config
from loopscale.errors import InputError
from loopscale.files import checksum, versioned

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

    @property
    def training_flops(self) -> float | None:
        """The paper's training compute, 6 N_unroll D at the recurrence that the config states; None if D is unknown."""
        if self.training_tokens is None:
            return None
        return float(self.architecture.train_flops_per_token()) * self.training_tokens

    def inference_flops(self, passes: float) -> float:
        """Return the paper's inference compute of a token, 2 N_unroll; a mean number of passes will do."""
        return float(self.architecture.inference_flops_per_token([passes])[0])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "kind": "evaluated-model",
            "schema": SCHEMA,
            "checkpoint": self.checkpoint,
            "name": self.name,
            "architecture": self.architecture.to_dict(),
            "training_tokens": self.training_tokens,
        }

    @classmethod
    def from_dict(cls, data: object, where: str) -> Model:
        """Read what :meth:`to_dict` wrote."""
        fields = versioned(data, where, "evaluated-model", SCHEMA)
        model = cls(
            fields.take("checkpoint", str),
            fields.take("name", str),
            Architecture.from_dict(fields.take("architecture", dict), f"{where}: architecture"),
            fields.optional("training_tokens", float),
        )
        fields.done()
        return model


def read_checkpoint(folder: str | Path, tokenizer: str | None = None, tokens: float | None = None) -> Model:
    """Return the model of a checkpoint folder, without loading it.

    One that a run left in its folder has the run's name, and ``tokens`` are known for it.
    """
    from loopscale.train.run_dir import model_of, read_summary, run_of  # tables of results need no torch

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
    return Model(
        contents_hash(parts),
        architecture.name if run is None else run.name,
        architecture,
        summary.get("tokens") if tokens is None else tokens,
    )


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
