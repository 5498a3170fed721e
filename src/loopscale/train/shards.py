"""Tokens on disk: memory-mapped shards with an index, made once, whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscale.errors import InputError
from loopscale.files import Fields, checksum, read_json, versioned
from loopscale.train.documents import DataSource
from loopscale.train.preparing import INDEX, KIND, SCHEMA, SPLITS, TOKENIZER, difference, make
from loopscale.train.tokens import check_name, id_type
from loopscale.train.writing import Shard, one_at_a_time, whole_or_not_at_all

__all__ = ["DataSource", "TokenStore", "prepare"]


@dataclass(frozen=True)
class TokenStore:
    """The tokens of a corpus, by split."""

    folder: Path
    vocabulary: int
    end: int
    """The token that ends every document, and is nowhere else."""
    digest: str
    """Identity of the tokens: equal digests are equal tokens in equal order."""
    shards: dict[str, tuple[Shard, ...]]
    documents: dict[str, int]
    """How many documents each split has."""
    source: dict[str, Any]
    """What the tokens were made from."""

    @classmethod
    def open(cls, folder: str | Path) -> TokenStore:
        """Open a folder that ``prepare`` wrote; the index and the size of every shard are checked, no token is read."""
        where = Path(folder)
        if not (where / INDEX).is_file():
            raise InputError(f"{folder}: there are no tokens here, for it holds no {INDEX}; prepare them first")
        store = _read_index(where)
        for shard in chain(*store.shards.values()):
            _check_size(where / shard.file, shard.tokens * store.dtype.itemsize)
        return store

    @property
    def tokens(self) -> dict[str, int]:
        """How many tokens each split has."""
        return {split: sum(shard.tokens for shard in shards) for split, shards in self.shards.items()}

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

        return AutoTokenizer.from_pretrained(str(self.folder / TOKENIZER))

    def verify(self) -> None:
        """Read every token and compare the shards with their checksums."""
        for shard in chain(*self.shards.values()):
            if checksum(self.folder / shard.file) != shard.sha256:
                raise InputError(f"{self.folder / shard.file}: damaged: its SHA-256 is not the one in {INDEX}")


def prepare(source: DataSource, folder: str | Path, *, progress: bool = True) -> TokenStore:
    """Tokenise ``source`` into ``folder``, or open what an earlier call with the same source left there.

    All is written beside the folder and renamed at the end: what a killed preparation leaves, the next one sweeps away.
    Several processes may call this at once; one works and the others wait for it.
    """
    folder = Path(folder)
    check_name(source.tokenizer)
    identity = source.identity()
    found = _made_before(folder, identity)
    if found is not None:
        return found
    with one_at_a_time(folder):
        found = _made_before(folder, identity)
        if found is not None:
            return found
        with whole_or_not_at_all(folder) as partial:
            make(source, identity, partial, progress)
    return TokenStore.open(folder)


def _made_before(folder: Path, identity: dict[str, Any]) -> TokenStore | None:
    """Return the store in ``folder`` if it is of this source; anything else there is left alone."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise InputError(f"{folder}: this is a file; name a folder for the tokens")
    if not any(folder.iterdir()):
        return None
    if not (folder / INDEX).is_file():
        raise InputError(f"{folder}: the folder holds other files; name an empty or a new one for the tokens")
    store = TokenStore.open(folder)
    changed = difference(store.source, identity)
    if changed:
        raise InputError(f"{folder}: its tokens are of another source: {changed}; name another folder or remove it")
    return store


def _read_index(folder: Path) -> TokenStore:
    path = folder / INDEX
    fields = versioned(read_json(path), str(path), KIND, SCHEMA)
    vocabulary, end = fields.take("vocabulary", int), fields.take("end", int)
    digest, source = fields.take("digest", str), fields.take("source", dict)
    splits = fields.object("splits")
    read = {split: _read_split(splits.object(split)) for split in SPLITS}
    splits.done()
    fields.done()
    if not 0 <= end < vocabulary:
        raise InputError(f"{path}: the end token {end} is not one of the {vocabulary} tokens")
    shards = {split: found for split, (found, _) in read.items()}
    return TokenStore(
        folder, vocabulary, end, digest, shards, {split: count for split, (_, count) in read.items()}, source
    )


def _read_split(fields: Fields) -> tuple[tuple[Shard, ...], int]:
    listed = fields.take("shards", list)
    shards = tuple(_read_shard(Fields(each, f"{fields.where}: shard {place}")) for place, each in enumerate(listed))
    count = fields.take("documents", int)
    fields.done()
    return shards, count


def _read_shard(fields: Fields) -> Shard:
    shard = Shard(fields.take("file", str), fields.take("tokens", int), fields.take("sha256", str))
    fields.done()
    if Path(shard.file).name != shard.file or shard.tokens < 1:
        raise InputError(f"{fields.where}: {shard.file!r} of {shard.tokens} tokens is not a file of the folder")
    return shard


def _check_size(path: Path, wanted: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; remove the folder and prepare it again") from None
    if found != wanted:
        raise InputError(f"{path}: has {found} bytes, not {wanted}; remove the folder and prepare it again")
