"""Public files by source and checksum: downloaded once on the user's machine, checked every time."""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from loopscale.errors import InputError
from loopscale.files import cache_folder

FOLDER_VARIABLE = "LOOPSCALE_DATA"
_LARGEST = 1 << 26
_PATIENCE = 60.0


@dataclass(frozen=True)
class PublicFile:
    """One file of somebody else's: where it lives, under what terms, and which bytes it must be."""

    file: str
    """Its name in the data folder."""
    origin: str
    """Repository and path, or what it was made from."""
    licence: str
    sha256: str
    url: str | None
    """Where to download it; None when the file was never published as such."""
    otherwise: str = ""
    """How to get it where there is nothing to download."""


def fetch(source: PublicFile) -> bytes:
    """Return the file's bytes, checked: from ``LOOPSCALE_DATA`` when that is set, else from the cache or its URL."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        return _given(source, Path(folder) / source.file)
    cached = cache_folder() / source.file
    if cached.is_file():
        return _checked(source, cached.read_bytes(), str(cached))
    if source.url is None:
        raise InputError(f"{source.file}: {source.otherwise}; put it in a folder and name that in {FOLDER_VARIABLE}")
    content = _checked(source, _download(source.url), source.url)
    _keep(cached, content)
    return content


def _given(source: PublicFile, path: Path) -> bytes:
    try:
        return _checked(source, path.read_bytes(), str(path))
    except FileNotFoundError:
        remedy = f"get it from {source.url}" if source.url else source.otherwise
        raise InputError(f"{path}: no such file in the folder that {FOLDER_VARIABLE} names; {remedy}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _checked(source: PublicFile, content: bytes, where: str) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != source.sha256:
        raise InputError(
            f"{where}: SHA-256 is {found[:12]}…, but {source.file} from {source.origin} has {source.sha256[:12]}…; "
            "remove the file to download it again, or read your own file with Observations.read"
        )
    return content


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:
            content: bytes = answer.read(_LARGEST + 1)
    except (OSError, ValueError) as error:  # URLError is an OSError
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise InputError(
            f"{url}: download failed: {reason}; fetch it by hand into a folder and name that in {FOLDER_VARIABLE}"
        ) from None
    if len(content) > _LARGEST:
        raise InputError(f"{url}: the answer exceeds {_LARGEST >> 20} MiB, so it cannot be the file")
    return content


def _keep(path: Path, content: bytes) -> None:
    """Write under a temporary name, then rename: another process never sees half a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            file.write(content)
        Path(file.name).replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
