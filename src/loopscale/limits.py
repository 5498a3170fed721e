"""Limits of everything that is read from outside. They are checked before memory is allocated."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from loopscale.errors import InputError

TEXT_BYTES = 512 * 2**20
"""Size of a JSON, TOML or CSV file, unpacked."""

TABLE_ROWS = 2_000_000
"""Rows of a table of observations or results. The largest public sweep has a few thousand."""

LAYERS = 4_096
"""Layers of each part of a model: prelude, loop block and coda."""

RECURRENCE = 4_096
"""Passes through the loop block."""


def check_size(path: str | Path, most: int = TEXT_BYTES) -> None:
    """Refuse a file that is larger than ``most`` bytes; a missing file is left to the reader."""
    try:
        size = Path(path).stat().st_size
    except (OSError, ValueError):
        return
    if size > most:
        raise InputError(f"{path}: it has {size:,} bytes, more than the {most:,} that are read")


def check_rows(rows: int, source: str) -> None:
    """Refuse a table with more rows than are read."""
    if rows > TABLE_ROWS:
        raise InputError(f"{source}: it has {rows:,} rows, more than the {TABLE_ROWS:,} that are read")


def gunzip(content: bytes, source: str, most: int = TEXT_BYTES) -> bytes:
    """Return the unpacked content; what unpacks to more than ``most`` bytes is refused before it is all in memory."""
    unpack = zlib.decompressobj(wbits=31)
    parts, size = [], 0
    try:
        while content:
            part = unpack.decompress(content, 2**20)
            parts.append(part)
            size += len(part)
            if size > most:
                raise InputError(f"{source}: it unpacks to more than the {most:,} bytes that are read")
            content = unpack.unconsumed_tail
            if unpack.eof and unpack.unused_data:  # several members, as `cat a.gz b.gz` makes
                content, unpack = unpack.unused_data, zlib.decompressobj(wbits=31)
    except zlib.error as error:
        raise gzip.BadGzipFile(str(error)) from None
    if not unpack.eof:
        raise EOFError("the compressed file ends early")
    return b"".join(parts)
