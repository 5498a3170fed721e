"""The one error that a person should see."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class InputError(ValueError):
    """Bad input, said in one sentence: where it is, what was found, what would do.

    Commands print it without a traceback and exit with code 2.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean X?)"`` when a known word is close, else an empty string."""
    match = get_close_matches(word, list(known), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


def shown(value: object, limit: int = 60) -> str:
    """Return ``value`` as an error may quote it: on one line, and not too long."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
