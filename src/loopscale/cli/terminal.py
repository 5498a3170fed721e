"""Standard output and error as they are: closed, full, or without the characters that tables are drawn with."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import unicodedata

_PLAIN = {"·": "-", "–": "-", "—": "-", "−": "-", "†": "+", "…": "...", "→": "->", "×": "x", "≥": ">=", "≤": "<=",
          "✓": "ok", "✗": "x", "█": "#", "░": ".", "▲": "^", "▼": "v", "•": "*", "±": "+/-", "≈": "~"}  # fmt: skip
"""What a terminal without a character gets in its place."""
_LOST = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""Why the system refuses what is written to an open file."""


def prepare_streams() -> None:
    """Let every character be printed, in a plainer form where the encoding lacks it; open a closed standard error."""
    codecs.register_error("plain", _plainly)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - for the life of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")


def is_output_error(error: OSError) -> bool:
    """Tell whether an error comes from writing to a stream, not to a file that has a name."""
    return error.filename is None and error.errno in _LOST


def drop_output() -> None:
    """Send what is still to be printed nowhere, so that the interpreter does not fail again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_plain(character) for character in error.object[error.start : error.end]), error.end


def _plain(character: str) -> str:
    if character in _PLAIN:
        return _PLAIN[character]
    name = unicodedata.name(character, "")
    if name.startswith("BOX DRAWINGS"):
        return "|" if "VERTICAL" in name else "-"
    if name.startswith(("BLOCK", "LEFT", "LOWER", "BRAILLE")):  # bars and small charts
        return "#"
    letters = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return letters or "?"
