"""Sealed files: written once with a date and a hash, before an outcome is known, and read only if unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loopscale.core.errors import InputError, shown
from loopscale.core.files import check_version, content_checksum, finite, read_json, write_json

SCHEMA = 1


def seal(path: str | Path, kind: str, content: Mapping[str, Any]) -> None:
    """Write content with its date and a hash; an existing file is not replaced."""
    if Path(path).exists():
        raise InputError(
            "it exists already; a registered prediction is not replaced", where=str(path), remedy="name another file"
        )
    dated = {"kind": kind, "schema": SCHEMA, "date": datetime.now(UTC).isoformat(timespec="seconds"), **content}
    write_json(path, {**dated, "sha256": _digest(dated)})


def unseal(path: str | Path, kind: str, command: str) -> dict[str, Any]:
    """Read sealed content; a file of another kind, or one that was changed since, is refused."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("kind") != kind:
        raise InputError(
            f"this is not a {kind.replace('-', ' ')}", where=str(path), remedy=f"write one with `{command}`"
        )
    content = {name: value for name, value in data.items() if name != "sha256"}
    if data.get("sha256") != _digest(content):
        raise InputError(
            "its content does not match its hash; the file was changed after it was written", where=str(path)
        )
    check_version(data, str(path), kind, SCHEMA)
    try:
        datetime.fromisoformat(content.get("date", ""))
    except (TypeError, ValueError):
        raise InputError(
            f"{path}: field 'date' is {shown(content.get('date'))}; it should be a date and a time"
        ) from None
    return content


def _digest(content: Mapping[str, Any]) -> str:
    return content_checksum(finite(content)).removeprefix("sha256:")
