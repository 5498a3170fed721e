"""From text to tokens on disk."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from loopscale.core.errors import InputError
from loopscale.core.files import replace_folder, write_json
from loopscale.core.progress import bars
from loopscale.train.data.shards import PROGRESS, SplitWriter, atomic_folder, one_at_a_time, read_or_none
from loopscale.train.data.sources import DataSource, HoldOut, difference, with_checksums
from loopscale.train.data.token_store import INDEX, KIND, SCHEMA, SPLITS, TOKENIZER, TokenStore
from loopscale.train.data.tokenizer import Ids, Tokens, check_name, find_tokens, id_type

__all__ = ["DataSource", "prepare"]

GROUP = 1 << 22
"""Number of characters tokenised in one call: enough to keep every core busy."""
RECORD = 16
"""Groups between two records of the progress, from which a killed preparation resumes."""
FEW_TOKENS = 1 << 12
"""Tokens to hold out at least, two sequences of the default context, where they are at most a fifth of the text."""
Encoded = dict[str, tuple[Ids, int]]
"""The ids and the number of documents of a group, by split."""


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


def make(
    source: DataSource, identity: dict[str, Any], folder: Path, progress: bool, processes: int | None = None
) -> None:
    """Write shards, tokenizer and index into ``folder``; continue from the progress that is recorded there."""
    tokens, writers = _write_shards(source, source.hold_out(), folder, progress, processes)
    held, trained = (sum(shard.tokens for shard in writers[split].shards) for split in ("validation", "train"))
    too_few = not writers["validation"].documents or (held < FEW_TOKENS and held + trained >= 5 * FEW_TOKENS)
    if source.validation and too_few:
        # The tokenizer is trained again, without what is held out now.
        shutil.rmtree(folder / TOKENIZER)
        for shard in folder.glob("*.bin"):
            shard.unlink()
        tokens, writers = _write_shards(source, source.hold_out_of_few(), folder, progress, processes)
    if not writers["train"].documents:
        raise InputError(
            f"there is no text to train on: {writers['validation'].documents} documents were found, all held out for "
            "validation; give more text, or lower [data] validation"
        )
    write_json(folder / INDEX, _index(tokens, writers, with_checksums(identity, source)))


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
    record = read_or_none(folder / PROGRESS) if (folder / PROGRESS).is_file() else None
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
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    )  # fmt: skip
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
