"""Rows of files with targets of their own: ids and labels, or a prompt and its completion."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscale.core.errors import InputError, shown
from loopscale.core.files import read_json, write_json
from loopscale.train.data.batches import IGNORED
from loopscale.train.data.labels import LabelledStore
from loopscale.train.data.shards import atomic_folder, one_at_a_time
from loopscale.train.data.sources import DataSource, difference, with_checksums
from loopscale.train.data.tasks import Rows
from loopscale.train.data.token_store import INDEX, TOKENIZER
from loopscale.train.data.tokenizer import find_tokens

ARRAYS = ("ids", "labels", "offsets")
"""The files of a split."""


@dataclass(frozen=True)
class RowStore(LabelledStore):
    """Rows of files, as arrays that are read from the disk where they are touched."""

    @property
    def tokens(self) -> dict[str, int]:
        """How many tokens the rows of each split have."""
        return {split: int(self._arrays[split]["offsets"][-1]) for split in ("train", "validation")}

    def rows(self, split: str) -> int | None:
        """Return how many rows a split has."""
        return len(self._arrays[split]["offsets"]) - 1

    def verify(self) -> None:
        """Compare the arrays with the identity in the index."""
        if _digest(self.folder) != self.digest:
            raise InputError(
                f"{self.folder}: damaged: its rows are not those of {INDEX}; remove the folder and start again"
            )

    def read(self, split: str, indices: NDArray[np.int64], context: int) -> tuple[Rows, Rows]:
        """Return rows by their index."""
        arrays = self._arrays[split]
        ids = np.full((len(indices), context), self.end, np.int64)
        labels = np.full(ids.shape, IGNORED, np.int64)
        for row, index in enumerate(indices):
            first, last = arrays["offsets"][index], arrays["offsets"][index + 1]
            if last - first > context:
                raise InputError(
                    f"a row of the {split} split has {last - first} tokens, more than [data] context ({context}); "
                    "raise it, or shorten the row"
                )
            ids[row, : last - first] = arrays["ids"][first:last]
            labels[row, : last - first] = arrays["labels"][first:last]
        labels[:, 0] = IGNORED  # nothing comes before the first token
        return ids, labels

    @property
    def stored_bytes(self) -> int:
        """How much ``verify`` reads."""
        return sum(file.stat().st_size for file in self.folder.glob("*.npy"))

    @cached_property
    def _arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        return {
            split: {name: np.load(self.folder / f"{split}-{name}.npy", mmap_mode="r") for name in ARRAYS}
            for split in ("train", "validation")
        }


def prepare_rows(source: DataSource, fields: tuple[str, str], folder: Path) -> RowStore:
    """Tokenise the rows of files into ``folder``, or open what an earlier call with the same source wrote there."""
    identity = json.loads(json.dumps(source.identity() | {"fields": fields}))
    with one_at_a_time(folder):
        if not (folder / INDEX).is_file():
            with atomic_folder(folder, identity) as partial:
                _write_rows(source, fields, partial, identity)
    index = read_json(folder / INDEX)
    if not isinstance(index, dict):
        raise InputError(
            f"{folder / INDEX}: found {shown(index)} where an object was expected; remove the folder and start again"
        )
    changed = difference(index.get("source", {}), identity, source)
    if changed:
        raise InputError(f"{folder}: its rows are of another source: {changed}; name another folder or remove it")
    return RowStore(folder, index["vocabulary"], index["end"], index["digest"], {}, index["documents"], identity)


def _write_rows(source: DataSource, fields: tuple[str, str], folder: Path, identity: dict[str, Any]) -> None:
    training = (str(value) for row, _ in source.rows(fields) for value in row if isinstance(value, str))
    tokens = find_tokens(source.tokenizer, training)
    parts: dict[str, list[tuple[Rows, Rows]]] = {"train": [], "validation": []}
    for row, where in source.rows(fields):
        ids, labels = (_ids_of_row if fields[0] == "input_ids" else _completion)(row, fields, tokens, where)
        split = "validation" if source.held_out(json.dumps(row[0])) else "train"
        parts[split].append((ids, labels))
    for split, pairs in parts.items():
        empty = np.empty(0, np.int64)
        np.save(folder / f"{split}-ids.npy", np.concatenate([empty, *(ids for ids, _ in pairs)]).astype(np.int32))
        np.save(folder / f"{split}-labels.npy", np.concatenate([empty, *(row for _, row in pairs)]).astype(np.int32))
        np.save(folder / f"{split}-offsets.npy", np.cumsum([0, *(len(ids) for ids, _ in pairs)]))
    tokens.tokenizer.save_pretrained(folder / TOKENIZER)
    documents = {split: len(pairs) for split, pairs in parts.items()}
    facts = {"vocabulary": tokens.vocabulary, "end": tokens.end, "documents": documents, "digest": _digest(folder)}
    write_json(folder / INDEX, facts | {"source": with_checksums(identity, source)})


def _digest(folder: Path) -> str:
    files = sorted(folder.glob("*.npy"))
    return sha256(b"".join(sha256(file.read_bytes()).digest() for file in files)).hexdigest()


def _ids_of_row(row: tuple[Any, Any], fields: tuple[str, str], tokens: Any, where: str) -> tuple[Rows, Rows]:
    """Return ids and labels as a file gives them; labels are aligned as Hugging Face has it."""
    for name, values in zip(fields, row, strict=True):
        least = 0 if name == "input_ids" else IGNORED
        if not isinstance(values, list) or not all(type(value) is int for value in values):
            raise InputError(f"{where}: field {name!r} is {shown(values)}; it should be a list of token ids")
        bad = [value for value in values if not (0 <= value < tokens.vocabulary or value == least)]
        if bad:
            raise InputError(
                f"{where}: field {name!r} holds the id {bad[0]}, outside the vocabulary of {tokens.vocabulary}; name "
                "the tokenizer of the ids with [data] tokenizer"
            )
    ids, labels = (np.array(values, np.int64) for values in row)
    if len(ids) != len(labels) or not len(ids):
        raise InputError(
            f"{where}: it has {len(ids)} ids and {len(labels)} labels; there should be as many labels as ids, and some"
        )
    return ids, labels


def _completion(row: tuple[Any, Any], fields: tuple[str, str], tokens: Any, where: str) -> tuple[Rows, Rows]:
    """Return a prompt and its completion as ids; the completion and the end token are the labels."""
    for name, value in zip(fields, row, strict=True):
        if not isinstance(value, str) or not value:
            raise InputError(f"{where}: field {name!r} is {shown(value)}; it should be text")
    prompt, completion = (tokens.encode([text]).astype(np.int64) for text in row)
    ids = np.concatenate((prompt[:-1], completion))  # each ends with the end token
    labels = np.concatenate((np.full(len(prompt) - 1, IGNORED), completion))
    return ids, labels
