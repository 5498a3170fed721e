"""The tokens that the settings of a run ask for, their batches, and the model's configuration for them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscale.core.files import cache_folder
from loopscale.train.config import TrainConfig
from loopscale.train.data.batches import Batches, MixedBatches
from loopscale.train.data.labels import AnyBatches, LabelledBatches, LabelledStore, TaskStore
from loopscale.train.data.prepare import prepare
from loopscale.train.data.rows import prepare_rows
from loopscale.train.data.sources import DataSource
from loopscale.train.data.token_store import MixedStore, TokenStore

if TYPE_CHECKING:  # commands that do not train import this file, and do not load torch
    from loopscale.model import LoopedMoEConfig
    from loopscale.train.sections.data import DataSection, SourceSection


def open_tokens(config: TrainConfig, progress: bool) -> TokenStore:
    """Return the tokens of a run; they are made now if no run on this text has made them before."""
    data = config.data
    if config.task is not None:
        return TaskStore.of(config.task)
    if data.format != "text":
        columns = ("input_ids", "labels") if data.format == "labels" else ("prompt", "completion")
        rows = _source(data)
        return prepare_rows(rows, columns, _folder_of(rows, data.folder, data.format))
    if not data.mix:
        source = _source(data)
        return prepare(source, _folder_of(source, data.folder), progress=progress, processes=data.processes)
    parts = {}
    for name, section in data.sources.items():
        source, folder = _source(data, section), None if data.folder is None else str(Path(data.folder) / name)
        parts[name] = prepare(source, _folder_of(source, folder), progress=progress, processes=data.processes)
    return MixedStore.of(parts, data.mix)


def open_batches(config: TrainConfig, store: TokenStore) -> tuple[AnyBatches, AnyBatches]:
    """Return the batches of the training and of the validation split."""
    options: dict[str, Any] = {"batch": config.run.batch, "context": config.data.context, "seed": config.run.seed}
    kind: Any = Batches
    if isinstance(store, LabelledStore):
        kind = LabelledBatches
    elif isinstance(store, MixedStore):
        kind = MixedBatches
    return kind(store, split="train", **options), kind(store, split="validation", shuffle=False, **options)


def stored_tokens(config: TrainConfig) -> TokenStore | None:
    """Return the tokens of a run where they are prepared or need no preparation; makes nothing."""
    data = config.data
    if config.task is not None:
        return TaskStore.of(config.task)
    if data.mix or data.format != "text":
        return None
    folder = _folder_of(_source(data), data.folder)
    return TokenStore.open(folder) if folder.is_dir() else None


def model_config(config: TrainConfig, store: TokenStore) -> LoopedMoEConfig:
    """Return the model's configuration, for the vocabulary of the tokens."""
    # A multiple of 8 keeps rows of the head aligned.
    vocabulary = -(-store.vocabulary // 8) * 8
    return config.model.config(vocabulary, config.data.context, eos_token_id=store.end, pad_token_id=None)


def _source(data: DataSection, section: SourceSection | None = None) -> DataSource:
    """Return the text of [data], or that of one section of its mixture."""
    names = DataSource.__dataclass_fields__
    return DataSource(**{name: getattr(section if hasattr(section, name) else data, name) for name in names})


def _folder_of(source: DataSource, folder: str | None, kind: str = "text") -> Path:
    """Return the folder of the tokens of a source: the one that the settings name, or one in the user's cache."""
    if folder is not None:
        return Path(folder)
    identity = source.identity() if kind == "text" else source.identity() | {"format": kind}
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]
    return cache_folder() / "tokens" / name
