"""One pass over the documents: split them, tokenise them, write them, and say what was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from loopscale.errors import InputError, shown
from loopscale.files import write_json
from loopscale.train.documents import DataSource
from loopscale.train.tokens import Tokens, find_tokens, id_type
from loopscale.train.writing import SplitWriter

SPLITS = ("train", "validation")
INDEX, TOKENIZER = "index.json", "tokenizer"
KIND, SCHEMA = "token-store", 1
GROUP = 1 << 22
"""Characters tokenised at once: enough to keep every core busy."""


def make(source: DataSource, identity: dict[str, Any], folder: Path, progress: bool) -> None:
    """Write shards, tokenizer and index into ``folder``."""
    with _tracker(source.size(), progress) as tracked:
        training = (text for text in tracked("training the tokenizer", source.documents()) if not source.held_out(text))
        tokens = find_tokens(source.tokenizer, training)
        writers = {split: SplitWriter(folder, split, id_type(tokens.vocabulary)) for split in SPLITS}
        for group in _groups(tracked("tokenising", source.documents())):
            _write(group, source, tokens, writers)
    for writer in writers.values():
        writer.finish()
    if not writers["train"].documents:
        held = writers["validation"].documents
        raise InputError(f"there is no text to train on: {held} documents were found, all held out for validation")
    tokens.tokenizer.save_pretrained(folder / TOKENIZER)
    write_json(folder / INDEX, _index(tokens, writers, identity))


def difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Say what a store was made from otherwise, or nothing."""
    for name in new:
        before, now = old.get(name), new[name]
        if before == now:
            continue
        if name == "files" and before:
            changed = [each[0] for each in now if each not in before] or [each[0] for each in before if each not in now]
            return f"the files have changed, first {changed[0] if changed else 'their order'}"
        return f"{name} was {shown(before)} and is {shown(now)}"
    return ""


def _write(group: list[str], source: DataSource, tokens: Tokens, writers: dict[str, SplitWriter]) -> None:
    sides: dict[str, list[str]] = {split: [] for split in SPLITS}
    for text in group:
        sides["validation" if source.held_out(text) else "train"].append(text)
    for split, texts in sides.items():
        if texts:
            writers[split].append(tokens.encode(texts), len(texts))


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
    """Give a function that passes texts through and shows how many bytes of them went by."""
    out = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=out, transient=True, disable=not (wanted and out.is_terminal)) as bar:

        def tracked(what: str, texts: Iterator[str]) -> Iterator[str]:
            task, waiting = bar.add_task(what, total=total), 0
            for text in texts:
                yield text
                waiting += len(text.encode())
                if waiting > GROUP // 8:
                    bar.advance(task, waiting)
                    waiting = 0

        yield tracked
