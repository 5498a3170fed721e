"""Tokens on disk: memory-mapped shards with an index and checksums."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from loopscale.core.errors import InputError, shown
from loopscale.core.files import checksum, read_json
from loopscale.core.schemas import File, Record, parse
from loopscale.train.data.tokenizer import id_type

SPLITS = ("train", "validation")
KIND, SCHEMA = "token-store", 1
INDEX, TOKENIZER = "index.json", "tokenizer"


def _in_folder(name: str) -> str:
    if Path(name).name != name:
        raise ValueError(f"{shown(name)} is not a file of the folder")
    return name


@dataclass(frozen=True)
class Shard:
    """One file of ids: its name, length and checksum."""

    file: Annotated[str, AfterValidator(_in_folder)]
    tokens: Annotated[int, Field(ge=1)]
    sha256: str
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


class SplitRecord(Record):
    """The tokens of one split."""

    shards: list[Shard]
    documents: int = Field(ge=0)


class SplitsRecord(Record):
    """Both splits."""

    train: SplitRecord
    validation: SplitRecord


class IndexFile(File):
    """index.json: what a folder of tokens holds, and what it was made from."""

    KIND, VERSION = KIND, SCHEMA

    vocabulary: int = Field(ge=1)
    end: int = Field(ge=0)
    """The token that ends every document; it occurs nowhere else."""
    digest: str
    """Identity of the tokens: equal digests are equal tokens in equal order."""
    splits: SplitsRecord
    source: dict[str, Any]
    """Settings and files that the tokens were made from."""

    @model_validator(mode="after")
    def _end_is_a_token(self) -> IndexFile:
        if self.end >= self.vocabulary:
            raise ValueError(f"the end token {self.end} is not one of the {self.vocabulary} tokens")
        return self


@dataclass(frozen=True)
class TokenStore:
    """The tokens of a corpus, by split."""

    folder: Path
    vocabulary: int
    end: int
    """The token that ends every document; it occurs nowhere else."""
    digest: str
    """Identity of the tokens: equal digests are equal tokens in equal order."""
    shards: dict[str, tuple[Shard, ...]]
    documents: dict[str, int]
    """How many documents each split has."""
    source: dict[str, Any]
    """Settings and files that the tokens were made from."""

    @classmethod
    def open(cls, folder: str | Path) -> TokenStore:
        """Open a folder that ``prepare`` wrote; the index and the size of every shard are checked, no token is read."""
        where = Path(folder)
        if not (where / INDEX).is_file():
            raise InputError(
                f"{folder}: there are no tokens here: the folder has no {INDEX}; prepare them with a run first"
            )
        file = parse(IndexFile, read_json(where / INDEX), str(where / INDEX))
        splits = {"train": file.splits.train, "validation": file.splits.validation}
        shards = {split: tuple(record.shards) for split, record in splits.items()}
        documents = {split: record.documents for split, record in splits.items()}
        store = cls(where, file.vocabulary, file.end, file.digest, shards, documents, file.source)
        remedy = "remove the folder and prepare it again"
        for shard in chain(*shards.values()):
            path, wanted = where / shard.file, shard.tokens * store.dtype.itemsize
            try:
                size = path.stat().st_size
            except OSError as error:
                raise InputError(f"{path}: cannot be read: {error.strerror}", remedy=remedy) from None
            if size != wanted:
                raise InputError(f"{path}: has {size} bytes, not {wanted}", remedy=remedy)
        return store

    @property
    def tokens(self) -> dict[str, int]:
        """How many tokens each split has."""
        return {split: sum(shard.tokens for shard in shards) for split, shards in self.shards.items()}

    @property
    def about(self) -> str:
        """What a run trains on, in a few words."""
        return f"{self.tokens['train']:,} tokens to train on, {self.tokens['validation']:,} held out"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an id on disk."""
        return id_type(self.vocabulary)

    def maps(self, split: str) -> list[NDArray[Any]]:
        """Return the shards of a split as arrays that are read from the disk where they are touched."""
        # Plain arrays over the maps: slicing a memmap itself takes tens of times as long.
        return [np.asarray(np.memmap(self.folder / shard.file, self.dtype, "r")) for shard in self.shards[split]]

    def tokenizer(self) -> Any:
        """Return the Hugging Face tokenizer that made the tokens."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(self.folder / TOKENIZER), trust_remote_code=False)

    def verify(self) -> None:
        """Read every token: compare the shards with their checksums, and the ids with the vocabulary."""
        for shard in chain(*self.shards.values()):
            path = self.folder / shard.file
            if checksum(path) != shard.sha256:
                raise InputError(
                    f"{path}: damaged: its SHA-256 is not the one in {INDEX}; remove the folder and prepare it again"
                )
            largest = int(np.memmap(path, self.dtype, "r").max())
            if largest >= self.vocabulary:
                raise InputError(
                    f"{path}: holds the token id {largest}, outside the vocabulary of {self.vocabulary}; remove the "
                    "folder and prepare it again"
                )

    @property
    def stored_bytes(self) -> int:
        """How much ``verify`` reads."""
        return sum(shard.tokens for shard in chain(*self.shards.values())) * self.dtype.itemsize


@dataclass(frozen=True)
class MixedStore(TokenStore):
    """Several stores of one vocabulary, and the weight of each; ``folder`` is that of the first."""

    parts: dict[str, TokenStore]
    weights: dict[str, float]

    @classmethod
    def of(cls, parts: dict[str, TokenStore], weights: dict[str, float]) -> MixedStore:
        """Join stores; their tokenizers must have the same vocabulary and end token."""
        stores = list(parts.values())
        if len({(store.vocabulary, store.end) for store in stores}) > 1:
            raise InputError("the sources of the mixture have different vocabularies; give them one tokenizer")
        names = [f"{name} {weights[name]} {store.digest}" for name, store in sorted(parts.items())]
        documents = {split: sum(store.documents[split] for store in stores) for split in SPLITS}
        shards = {split: tuple(chain(*(store.shards[split] for store in stores))) for split in SPLITS}
        first = stores[0]
        digest = sha256("\n".join(names).encode()).hexdigest()
        return cls(
            first.folder, first.vocabulary, first.end, digest, shards, documents, first.source, parts, dict(weights)
        )

    def verify(self) -> None:
        """Verify every source."""
        for part in self.parts.values():
            part.verify()
