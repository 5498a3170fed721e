"""Small stores that tests are made of."""

from __future__ import annotations

import json
from pathlib import Path

from loopscale.train.data.prepare import DataSource, prepare
from loopscale.train.data.token_store import TokenStore


def write_rows(path: Path, texts: list[str], field: str = "text") -> Path:
    """Write documents as JSONL."""
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts), encoding="utf-8")
    return path


def store_of(folder: Path, texts: list[str], **options: object) -> TokenStore:
    """Return the store of some documents; nothing is held out unless asked."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = write_rows(folder / "rows.jsonl", texts)
    source = DataSource((str(rows),), **{"validation": 0.0, **options})  # type: ignore[arg-type]
    return prepare(source, folder / "tokens", progress=False)


def stream(store: TokenStore, split: str = "train") -> list[int]:
    """Return every token of a split, in order."""
    return [int(token) for shard in store.maps(split) for token in shard]
