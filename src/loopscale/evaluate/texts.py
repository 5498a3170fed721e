"""Texts whose loss is measured: read from files or the hub, and cut into windows of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopscale.core import files
from loopscale.core.errors import InputError, shown
from loopscale.core.files import is_file
from loopscale.evaluate.tasks import quiet

READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True)
class Text:
    """Documents with a name for tables and a hash for keys."""

    name: str
    documents: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A hash of all documents."""
        whole = hashlib.sha256()
        for document in self.documents:
            whole.update(hashlib.sha256(document.encode()).digest())
        return whole.hexdigest()[:16]


def read_text(source: str, column: str = "text") -> Text:
    """Return the documents of a text file, of a JSONL, CSV or Parquet file, or of a data set NAME[:CONFIG[:SPLIT]]."""
    path = Path(source)
    if is_file(source) and path.suffix not in READERS:
        documents = [files.read_text(path)]
    elif is_file(source):
        documents = _column(READERS[path.suffix], source, column, data_files=source)
    elif path.suffix or "\0" in source:
        raise InputError(f"{shown(source)}: no such file")
    else:
        name, _, rest = source.partition(":")
        config, _, split = rest.partition(":")
        documents = _column(name, source, column, name=config or None, split=split or "test")
    kept = tuple(document for document in documents if document.strip())
    if not kept:
        raise InputError("it holds no text", where=source)
    return Text(path.name, kept)


@dataclass(frozen=True)
class Windows:
    """A text in tokens, cut into windows. Documents stand one after the other, an end-of-text token between them."""

    parts: tuple[list[int], ...]
    tokens_per_byte: float

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield token windows (B, T), padded on the right, and how many tokens of each count."""
        for start in range(0, len(self.parts), size):
            chosen = self.parts[start : start + size]
            lengths = torch.tensor([len(part) for part in chosen])
            padded = [part + [0] * (int(lengths.max()) - len(part)) for part in chosen]
            yield torch.tensor(padded), lengths


def cut(text: Text, tokenizer: Any, context: int) -> Windows:
    """Return the text's windows of ``context`` tokens."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ids: list[int] = []
    for document in text.documents:
        ids += [*tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"], *end]
    ids = ids[: len(ids) - len(end)]  # the text does not say what follows its last document
    parts = tuple(ids[start : start + context] for start in range(0, len(ids), context))
    kept = tuple(part for part in parts if len(part) > 1)
    if not kept:
        raise InputError(f"it has {len(ids)} tokens", where=str(text.name), remedy="a loss needs two or more")
    return Windows(kept, len(ids) / sum(len(document.encode()) for document in text.documents))


def _column(reader: str, source: str, column: str, split: str = "train", **options: Any) -> list[str]:
    import datasets

    try:
        with quiet():
            rows = datasets.load_dataset(reader, split=split, **options)
    except ConnectionError as error:
        raise InputError(
            f"{source}: no such file, and the Hugging Face hub is out of reach; where it is not, fetch it with "
            f"HF_HOME=folder hf download --repo-type dataset {reader}, bring the folder here, and set HF_HOME=folder "
            "and HF_HUB_OFFLINE=1"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"cannot be read: {reason}", where=source) from error
    if column not in rows.column_names:
        raise InputError(f"no column {column!r}", where=source, remedy=f"it has {', '.join(rows.column_names)}")
    return [str(text) for text in rows[column]]
