"""Tokens on disk: memory-mapped shards with an index and checksums, written once and atomically."""

from __future__ import annotations

import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

from loopscale.core.errors import InputError, LoopscaleError, StorageError, shown
from loopscale.core.files import checksum, make_lasting_folder, read_json, replace_folder, write_json
from loopscale.core.progress import bars
from loopscale.core.schemas import File, Record, parse
from loopscale.train.data.sources import DataSource, HoldOut
from loopscale.train.data.tokenizer import Ids, Tokens, check_name, find_tokens, id_type

__all__ = ["DataSource", "Mixture", "TokenStore", "prepare"]


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
            raise InputError(f"{folder}: there are no tokens here: the folder has no {INDEX}; prepare them first")
        store = _read_index(where)
        for shard in chain(*store.shards.values()):
            _check_size(where / shard.file, shard.tokens * store.dtype.itemsize)
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
        """How much :meth:`verify` reads."""
        return sum(shard.tokens for shard in chain(*self.shards.values())) * self.dtype.itemsize


@dataclass(frozen=True)
class Mixture(TokenStore):
    """Several stores of one vocabulary, and the weight of each; ``folder`` is that of the first."""

    parts: dict[str, TokenStore]
    weights: dict[str, float]

    @classmethod
    def of(cls, parts: dict[str, TokenStore], weights: dict[str, float]) -> Mixture:
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


def prepare(
    source: DataSource, folder: str | Path, *, progress: bool = True, processes: int | None = None
) -> TokenStore:
    """Tokenise ``source`` into ``folder``, or open what an earlier call with the same source wrote there.

    Everything is written beside the folder and renamed at the end; a killed preparation is resumed by the next call.
    ``processes`` tokenise in parallel, each on one core; by default this process does, and its library uses every core.
    The shards do not depend on it. A run verifies them while it trains. Several processes may call this at once; one
    does the work and the others wait for it.
    """
    folder = Path(folder)
    check_name(source.tokenizer)
    identity = source.identity()
    store = _made_before(folder, source, identity)
    if store is not None:
        return store
    with one_at_a_time(folder):
        store = _made_before(folder, source, identity)
        if store is None:
            with atomic_folder(folder, identity) as partial:
                make(source, identity, partial, progress, processes)
            store = TokenStore.open(folder)
    return store


def _made_before(folder: Path, source: DataSource, identity: dict[str, Any]) -> TokenStore | None:
    """Return the store in ``folder`` if it was made from this source; anything else there is refused."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise InputError(f"{folder}: this is a file; name a folder for the tokens")
    if not any(folder.iterdir()):
        return None
    if not (folder / INDEX).is_file():
        raise InputError(f"{folder}: the folder holds other files; name an empty or a new one for the tokens")
    store = TokenStore.open(folder)
    changed = difference(store.source, identity, source)
    if changed:
        raise InputError(f"{folder}: its tokens are of another source: {changed}; name another folder or remove it")
    return store


def _read_index(folder: Path) -> TokenStore:
    file = parse(IndexFile, read_json(folder / INDEX), str(folder / INDEX))
    splits = {"train": file.splits.train, "validation": file.splits.validation}
    shards = {split: tuple(record.shards) for split, record in splits.items()}
    documents = {split: record.documents for split, record in splits.items()}
    return TokenStore(folder, file.vocabulary, file.end, file.digest, shards, documents, file.source)


def _check_size(path: Path, wanted: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; remove the folder and prepare it again") from None
    if size != wanted:
        raise InputError(f"{path}: has {size} bytes, not {wanted}; remove the folder and prepare it again")


KIND, SCHEMA = "token-store", 1
SHARD_TOKENS = 1 << 27


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


class SplitWriter:
    """Appends the documents of one split to its shards; starts a new one when the last is full."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype[Any]) -> None:
        self.folder, self.split, self.dtype = folder, split, dtype
        self.documents = 0
        self.shards: list[Shard] = []
        self._file: IO[bytes] | None = None

    def append(self, ids: Ids, documents: int) -> None:
        """Write documents that follow each other."""
        self.documents += documents
        ids = ids.astype(self.dtype, copy=False)
        while ids.size:
            if self._file is None:
                self._start()
            room = SHARD_TOKENS - self._tokens
            self._write(ids[:room])
            ids = ids[room:]
            if self._tokens == SHARD_TOKENS:
                self.finish()

    def finish(self) -> None:
        """Close the shard that is being written, with all of it on the disk."""
        if self._file is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self.shards.append(Shard(Path(self._file.name).name, self._tokens, self._hash.hexdigest()))
        self._file = None

    def state(self) -> dict[str, Any]:
        """Bring everything to the disk, and return what ``restore`` needs to continue from here."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
        return {**self.summary(), "open": 0 if self._file is None else self._tokens}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken: what was written after it is cut off."""
        self.documents, self.shards = state["documents"], [Shard(**shard) for shard in state["shards"]]
        if not state["open"]:
            return
        path = self.folder / f"{self.split}-{len(self.shards):05d}.bin"
        self._file, self._tokens = path.open("r+b"), state["open"]
        self._file.truncate(self._tokens * self.dtype.itemsize)
        self._hash = sha256(self._file.read())

    def summary(self) -> dict[str, Any]:
        """Return the split's entry of the index."""
        return {"documents": self.documents, "shards": [asdict(shard) for shard in self.shards]}

    def _start(self) -> None:
        self._file = (self.folder / f"{self.split}-{len(self.shards):05d}.bin").open("wb")
        self._tokens, self._hash = 0, sha256()

    def _write(self, ids: Ids) -> None:
        assert self._file is not None
        data = ids.data.cast("B")
        self._file.write(data)
        self._hash.update(data)
        self._tokens += ids.size


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process at a time write ``folder``; the lock of a killed process is released."""
    with _writable(folder):
        make_lasting_folder(folder.parent)
        lock = FileLock(folder.parent / f".{folder.name}.lock")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def atomic_folder(folder: Path, identity: dict[str, Any]) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``folder`` when the block succeeds, and removed when it fails.

    What a killed process left for the same ``identity`` is still in it, so that the block can resume.
    """
    partial = folder.parent / f".{folder.name}.partial"
    mark = partial / "identity.json"
    with _writable(folder):
        if not mark.is_file() or _read_or_none(mark) != json.loads(json.dumps(identity)):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            write_json(mark, identity)
        try:
            yield partial
            for name in (mark.name, PROGRESS):
                (partial / name).unlink(missing_ok=True)
            replace_folder(partial, folder)
        except Exception:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def _read_or_none(path: Path) -> Any:
    try:
        return read_json(path)
    except InputError:
        return None


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except LoopscaleError:
        raise
    except OSError as error:
        raise StorageError(f"{folder}: the tokens cannot be written: {error.strerror or error}") from None


SPLITS = ("train", "validation")
INDEX, TOKENIZER, PROGRESS = "index.json", "tokenizer", "progress.json"
GROUP = 1 << 22
"""Number of characters tokenised in one call: enough to keep every core busy."""
RECORD = 16
"""Groups between two records of the progress, from which a killed preparation resumes."""
Encoded = dict[str, tuple[Ids, int]]
"""The ids and the number of documents of a group, by split."""


def make(
    source: DataSource, identity: dict[str, Any], folder: Path, progress: bool, processes: int | None = None
) -> None:
    """Write shards, tokenizer and index into ``folder``; continue from the progress that is recorded there."""
    tokens, writers = _write_shards(source, source.hold_out(), folder, progress, processes)
    if source.validation and _too_few(writers):
        # Too few of the documents are held out. The tokenizer is trained again, without what is held out now.
        shutil.rmtree(folder / TOKENIZER)
        for shard in folder.glob("*.bin"):
            shard.unlink()
        tokens, writers = _write_shards(source, source.hold_out_of_few(), folder, progress, processes)
    if not writers["train"].documents:
        held = writers["validation"].documents
        raise InputError(f"there is no text to train on: {held} documents were found, all held out for validation")
    write_json(folder / INDEX, _index(tokens, writers, with_checksums(identity, source)))


FEW_TOKENS = 1 << 12
"""Tokens to hold out at least, two sequences of the default context, where they are at most a fifth of the text."""


def _too_few(writers: dict[str, SplitWriter]) -> bool:
    """Tell whether the documents that their hash holds out are none, or too few to validate on."""
    held, trained = (sum(shard.tokens for shard in writers[split].shards) for split in ("validation", "train"))
    return not writers["validation"].documents or (held < FEW_TOKENS and held + trained >= 5 * FEW_TOKENS)


def _write_shards(
    source: DataSource, hold_out: HoldOut, folder: Path, progress: bool, processes: int | None
) -> tuple[Tokens, dict[str, SplitWriter]]:
    """Write the shards of both splits and the tokenizer; return the tokenizer and the writers, which are finished."""
    with _tracker(source.size(), progress) as tracked:
        tokens = _tokens(source, hold_out, folder, tracked)
        writers = {split: SplitWriter(folder, split, id_type(tokens.vocabulary)) for split in SPLITS}
        done = _resume(folder, hold_out, writers)
        groups = islice(_groups(tracked("tokenising", source.documents())), done, None)
        encoded_groups = _all_encoded(groups, source, hold_out, tokens, folder, processes)
        for number, encoded in enumerate(encoded_groups, start=done + 1):
            for split, (ids, documents) in encoded.items():
                writers[split].append(ids, documents)
            if number % RECORD == 0:
                states = {split: writer.state() for split, writer in writers.items()}
                record = {"groups": number, "splits": states, "hold_out": asdict(hold_out)}
                write_json(folder / PROGRESS, record)
    for writer in writers.values():
        writer.finish()
    return tokens, writers


def _tokens(
    source: DataSource, hold_out: HoldOut, folder: Path, tracked: Callable[[str, Iterator[str]], Iterator[str]]
) -> Tokens:
    """Return the tokenizer and save it; one that an interrupted preparation saved is used again."""
    if (folder / TOKENIZER).is_dir() and source.tokenizer != "bytes":
        return find_tokens(str(folder / TOKENIZER), ())
    parts = (hold_out.divide(text)[0] for text in tracked("training the tokenizer", source.documents()))
    training = (text for text in parts if text)
    tokens = find_tokens(source.tokenizer, training)
    temporary = folder / f".{TOKENIZER}"
    shutil.rmtree(temporary, ignore_errors=True)
    tokens.tokenizer.save_pretrained(temporary)
    if not (folder / TOKENIZER).is_dir():
        replace_folder(temporary, folder / TOKENIZER)
    shutil.rmtree(temporary, ignore_errors=True)
    return tokens


def _resume(folder: Path, hold_out: HoldOut, writers: dict[str, SplitWriter]) -> int:
    """Bring the writers to the recorded progress; return how many groups are done."""
    record = _read_or_none(folder / PROGRESS) if (folder / PROGRESS).is_file() else None
    if record is None or record.get("hold_out") != asdict(hold_out):
        return 0
    for split, writer in writers.items():
        writer.restore(record["splits"][split])
    return int(record["groups"])


def _all_encoded(
    groups: Iterator[list[str]],
    source: DataSource,
    hold_out: HoldOut,
    tokens: Tokens,
    folder: Path,
    processes: int | None,
) -> Iterator[Encoded]:
    """Yield the encoded groups in their order, from this process or from several."""
    if processes is None or source.tokenizer == "bytes":  # bytes take less time than sending them
        yield from (_encode(group, hold_out, tokens) for group in groups)
        return
    arguments = (hold_out, str(folder / TOKENIZER))
    with ProcessPoolExecutor(processes, get_context("spawn"), _start_worker, arguments) as pool:
        pending: deque[Future[Encoded]] = deque()
        for group in groups:
            pending.append(pool.submit(_encode_in_worker, group))
            if len(pending) > 2 * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


_worker: dict[str, Any] = {}


def _start_worker(hold_out: HoldOut, tokenizer: str) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core for each process
    _worker.update(hold_out=hold_out, tokens=find_tokens(tokenizer, ()))


def _encode_in_worker(group: list[str]) -> Encoded:
    return _encode(group, _worker["hold_out"], _worker["tokens"])


_FILES = ("files", "tokenizer_file")
"""Parts of an identity that are names, sizes and times of files."""


def with_checksums(identity: dict[str, Any], source: DataSource) -> dict[str, Any]:
    """Return an identity with the checksums of its files, by which copies of them are known."""
    return {**identity, "checksums": {name: source.checksums(name) for name in _FILES if name in identity}}


def difference(old: dict[str, Any], new: dict[str, Any], source: DataSource) -> str:
    """Describe the first difference between what a store was made from and a source; empty if there is none.

    Files that were copied have other times: equal bytes under equal names are the same files.
    """
    for name in new:
        before, now = old.get(name), new[name]
        if before == now:
            continue
        if name in _FILES and _untimed(before) == _untimed(now):
            known = old.get("checksums", {}).get(name)
            if known is not None and known == source.checksums(name):
                continue
        if name == "files" and before:
            changed = [file[0] for file in now if file not in before] or [file[0] for file in before if file not in now]
            return f"the files have changed, first {changed[0] if changed else 'their order'}"
        return f"{name} was {shown(before)} and is {shown(now)}"
    return ""


def _untimed(stamps: Any) -> list[Any]:
    several = stamps if stamps and isinstance(stamps[0], list) else [stamps or []]
    return [stamp[:2] for stamp in several]


def _encode(group: list[str], hold_out: HoldOut, tokens: Tokens) -> Encoded:
    sides: dict[str, list[str]] = {split: [] for split in SPLITS}
    for text in group:
        for split, part in zip(SPLITS, hold_out.divide(text), strict=True):
            if part:
                sides[split].append(part)
    return {split: (tokens.encode(texts), len(texts)) for split, texts in sides.items() if texts}


def _index(tokens: Tokens, writers: dict[str, SplitWriter], identity: dict[str, Any]) -> dict[str, Any]:
    parts = [str(tokens.vocabulary), str(tokens.end)]
    parts += [f"{split} {shard.tokens} {shard.sha256}" for split in SPLITS for shard in writers[split].shards]
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "vocabulary": tokens.vocabulary,
        "end": tokens.end,
        "digest": sha256("\n".join(parts).encode()).hexdigest(),
        "splits": {split: writer.summary() for split, writer in writers.items()},
        "source": identity,
    }


def _groups(texts: Iterator[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group


@contextmanager
def _tracker(total: int | None, wanted: bool) -> Iterator[Callable[[str, Iterator[str]], Iterator[str]]]:
    """Yield a function that passes texts on unchanged and shows the number of bytes on a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with bars(*columns, shown=wanted) as bar:

        def tracked(what: str, texts: Iterator[str]) -> Iterator[str]:
            task, waiting = bar.add_task(what, total=total), 0
            for text in texts:
                yield text
                waiting += len(text.encode())
                if waiting > GROUP // 8:
                    bar.advance(task, waiting)
                    waiting = 0

        yield tracked
